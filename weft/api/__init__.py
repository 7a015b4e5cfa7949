"""The front end: FusionDefinition and everything with nvFuser's names."""
