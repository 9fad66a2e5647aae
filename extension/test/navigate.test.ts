import { describe, expect, it } from 'vitest';
import { atCursor, inOrder, neighbour } from '../src/navigate';
import { FindingsStore } from '../src/store';
import { finding, markOf, notebook } from './helpers';

const FIRST = 'a = x + 1\nb = f(x + 2)';
const SECOND = 'c = x + 3';

function entries(): ReturnType<typeof inOrder> {
  const store = new FindingsStore();
  const shared = notebook(FIRST, SECOND);
  store.open(shared, 'demo.ipynb');
  const findings = [
    finding({ id: 'F3', mark: markOf(SECOND, 'x + 3', 'cell-1') }),
    finding({ id: 'F2', mark: markOf(FIRST, 'x + 2') }),
    finding({ id: 'wide', mark: markOf(FIRST, 'f(x + 2)') }),
    finding({ id: 'F1', mark: markOf(FIRST, 'x + 1') }),
    finding({ id: 'applied', state: 'applied', mark: markOf(FIRST, 'x + 1') }),
    finding({ id: 'elsewhere' })
  ];
  const message = { revision: 1, busy: false, profiles: [], findings };
  store.dispatch(shared, { kind: 'findings', message });
  return inOrder(store, shared);
}

const id = (entry: { shown: { finding: { id: string } } } | null): string | undefined =>
  entry?.shown.finding.id;

describe('going from finding to finding', () => {
  it('goes by cell and place, whatever the rank', () => {
    expect(entries().map(id)).toEqual(['F1', 'wide', 'F2', 'F3']);
  });

  it('takes the next and previous one from the cursor, round the ends', () => {
    const all = entries();
    expect(id(neighbour(all, { cell: 0, offset: 0 }, 1))).toBe('F1');
    expect(id(neighbour(all, { cell: 0, offset: 4 }, 1))).toBe('wide');
    expect(id(neighbour(all, { cell: 1, offset: 4 }, 1))).toBe('F1');
    expect(id(neighbour(all, { cell: 1, offset: 4 }, -1))).toBe('F2');
    expect(id(neighbour(all, { cell: 0, offset: 4 }, -1))).toBe('F3');
    expect(neighbour([], { cell: 0, offset: 0 }, 1)).toBeNull();
  });

  it('takes the narrowest at the cursor, else the only one of the cell', () => {
    const all = entries();
    const within = FIRST.indexOf('x + 2') + 1;
    expect(atCursor(all, { cell: 0, offset: within })?.finding.id).toBe('F2');
    expect(atCursor(all, { cell: 0, offset: FIRST.indexOf('f(') })?.finding.id).toBe('wide');
    expect(atCursor(all, { cell: 0, offset: FIRST.indexOf('b =') })).toBeNull();
    expect(atCursor(all, { cell: 1, offset: 0 })?.finding.id).toBe('F3');
    expect(atCursor(all, { cell: 2, offset: 0 })).toBeNull();
  });
});
