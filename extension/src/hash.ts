/**
 * SHA-256 of a text's UTF-8, as hex.
 *
 * The browser's own `crypto.subtle` exists on https and localhost only, and answers later; a
 * notebook server reached by plain http needs the hash too, and an edit must be checked and made
 * in one step.
 */

const ROUND_CONSTANTS = roundConstants();

/** First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4). */
function roundConstants(): Uint32Array {
  const constants = new Uint32Array(64);
  for (let candidate = 2, found = 0; found < 64; candidate++) {
    if (isPrime(candidate)) {
      constants[found++] = fraction(Math.cbrt(candidate));
    }
  }
  return constants;
}

/** First 32 bits of the fractional parts of the square roots of the first 8 primes. */
function initialState(): Uint32Array {
  return Uint32Array.from([2, 3, 5, 7, 11, 13, 17, 19], prime => fraction(Math.sqrt(prime)));
}

function isPrime(candidate: number): boolean {
  for (let divisor = 2; divisor * divisor <= candidate; divisor++) {
    if (candidate % divisor === 0) {
      return false;
    }
  }
  return true;
}

function fraction(value: number): number {
  return Math.floor((value - Math.floor(value)) * 2 ** 32);
}

function rotate(word: number, bits: number): number {
  return (word >>> bits) | (word << (32 - bits));
}

function padded(bytes: Uint8Array): DataView {
  const length = Math.ceil((bytes.length + 9) / 64) * 64;
  const block = new Uint8Array(length);
  block.set(bytes);
  block[bytes.length] = 0x80;
  const view = new DataView(block.buffer);
  view.setUint32(length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(length - 4, (bytes.length << 3) >>> 0);
  return view;
}

function compress(state: Uint32Array, view: DataView, offset: number, words: Uint32Array): void {
  for (let i = 0; i < 16; i++) {
    words[i] = view.getUint32(offset + 4 * i);
  }
  for (let i = 16; i < 64; i++) {
    const w15 = words[i - 15];
    const w2 = words[i - 2];
    const s0 = rotate(w15, 7) ^ rotate(w15, 18) ^ (w15 >>> 3);
    const s1 = rotate(w2, 17) ^ rotate(w2, 19) ^ (w2 >>> 10);
    words[i] = words[i - 16] + s0 + words[i - 7] + s1;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i++) {
    const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const first = (h + s1 + ((e & f) ^ (~e & g)) + ROUND_CONSTANTS[i] + words[i]) | 0;
    const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const second = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((word, i) => {
    state[i] += word;
  });
}

export function sha256(source: string): string {
  const view = padded(new TextEncoder().encode(source));
  const state = initialState();
  const words = new Uint32Array(64);
  for (let offset = 0; offset < view.byteLength; offset += 64) {
    compress(state, view, offset, words);
  }
  return Array.from(state, word => word.toString(16).padStart(8, '0')).join('');
}
