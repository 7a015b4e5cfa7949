"""The package `nvfuser_common` of nvFuser's wheels."""
