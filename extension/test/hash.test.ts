import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { sha256 } from '../src/hash';

const node = (text: string): string => createHash('sha256').update(text, 'utf8').digest('hex');

describe('sha256', () => {
  it('gives the published value', () => {
    expect(sha256('abc')).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad');
  });

  it('agrees with the platform at every block boundary', () => {
    for (let length = 0; length < 200; length++) {
      const text = 'y = x * 2\n'.repeat(20).slice(0, length);
      expect(sha256(text)).toBe(node(text));
    }
  });

  it('hashes the UTF-8 of texts outside ASCII', () => {
    for (const text of ['# 🚀 θ', '\u00df\r\n\u4e2d', 'a'.repeat(63) + 'é']) {
      expect(sha256(text)).toBe(node(text));
    }
  });
});
