// Division of indices by sizes that the host knows. Read first: quotient.
namespace weft {

// n / size for 0 <= n < 2**31; `divisor` is the word of the size (weft/ops/divisors.py): a factor in its lower half, a shift in its upper one.
WEFT_DEVICE int quotient(int n, unsigned long long divisor) {
  const unsigned twice = 2u * (unsigned)n;
  return (int)((unsigned)((unsigned long long)twice * (unsigned)divisor >> 32) >> (unsigned)(divisor >> 32));
}

// n % size.
WEFT_DEVICE int remainder(int n, int size, unsigned long long divisor) { return n - quotient(n, divisor) * size; }

}  // namespace weft
