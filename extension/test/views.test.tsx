import * as React from 'react';
import { act } from 'react-dom/test-utils';
import { createRoot, Root } from 'react-dom/client';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { IGroup } from '../src/panel_model';
import type { IFinding, IProfile } from '../src/protocol';
import { emptyState, INotebookState, IShownFinding } from '../src/state';
import type { SharedNotebook } from '../src/store';
import { DetailsView } from '../src/views/details';
import { FindingsView, IPanelHandlers } from '../src/views/findings';
import { JobView } from '../src/views/job';
import { ProposalView } from '../src/views/proposal';
import { finding, markOf, notebook, proposal } from './helpers';

let box: HTMLElement;
let root: Root;

beforeEach(() => {
  box = document.createElement('div');
  document.body.append(box);
  root = createRoot(box);
});

afterEach(() => {
  act(() => root.unmount());
  box.remove();
});

function render(element: JSX.Element): void {
  act(() => root.render(element));
}

const all = (selector: string): Element[] => [...box.querySelectorAll(selector)];
const texts = (selector: string): string[] => all(selector).map(node => node.textContent ?? '');

function click(selector: string): void {
  const node = box.querySelector<HTMLElement>(selector);
  expect(node).not.toBeNull();
  act(() => node?.click());
}

const PROFILE: IProfile = {
  advice: 1,
  cell_id: 'cell-0',
  title: 'Cell [2]',
  wall_us: 8123,
  ratio_now: 0.083,
  ratio_plan: 0.71,
  bytes_saved_share: 0.42,
  saved_us: { low: 800, mid: 1200, high: 1900 },
  nothing: ''
};

function shown(change: Partial<IFinding>, state: IShownFinding['state'] = 'open'): IShownFinding {
  const entry = finding({ mark: markOf('y = x + 1', 'x + 1'), ...change });
  return { finding: entry, state, reason: '', span: state === 'open' ? { from: 4, to: 9 } : null };
}

function group(
  entries: IShownFinding[],
  change: Partial<INotebookState> = {},
  title = 'demo.ipynb'
): IGroup<SharedNotebook> {
  const state: INotebookState = {
    ...emptyState(title),
    link: 'ready',
    profiles: [PROFILE],
    findings: entries.map(entry => entry.finding),
    ...change
  };
  return { key: notebook('y = x + 1'), id: title, state, shown: entries };
}

function handlers(): { [Key in keyof IPanelHandlers]: ReturnType<typeof vi.fn> } {
  return {
    jump: vi.fn(),
    act: vi.fn(),
    review: vi.fn(),
    details: vi.fn(),
    measure: vi.fn(),
    canUndo: vi.fn(() => false),
    cancel: vi.fn(),
    report: vi.fn()
  };
}

function panel(
  groups: IGroup<SharedNotebook>[],
  use: IPanelHandlers = handlers(),
  current: SharedNotebook | null = null
): void {
  render(<FindingsView groups={groups} current={current} handlers={use} />);
}

function filter(text: string): void {
  const input = box.querySelector<HTMLInputElement>('.fusion-filter');
  const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value')?.set;
  act(() => {
    set?.call(input, text);
    input?.dispatchEvent(new Event('input', { bubbles: true }));
  });
}

describe('the panel', () => {
  it('ranks by share, what is open first', () => {
    panel([
      group([
        shown({ id: 'small', title: 'small', share: 0.01 }),
        shown({ id: 'done', title: 'done', share: 0.9 }, 'applied'),
        shown({ id: 'large', title: 'large', share: 0.5 }),
        shown({ id: 'off', title: 'off', share: 0.95 }, 'ignored')
      ])
    ]);
    expect(texts('.fusion-jump')).toEqual(['large', 'small', 'done', 'off']);
    expect(texts('.fusion-badge')).toEqual(['○ open', '○ open', '● applied', '⊘ ignored']);
  });

  it('filters by every word, over rule, text, file and state, and says how many are left', () => {
    panel([
      group([
        shown({ id: 'F1', title: 'Chain', rule: 'FUS001' }),
        shown({
          id: 'F2',
          title: 'Attention',
          rule: 'FUS010',
          inside: { file: '/site-packages/gpt2/modeling_gpt2.py', line: 7, function: 'f', text: '' }
        }),
        shown({ id: 'F3', title: 'Chain', rule: 'FUS001' }, 'applied')
      ])
    ]);
    filter('fus001 applied');
    expect(all('.fusion-finding').map(node => node.getAttribute('data-finding'))).toEqual(['F3']);
    expect(texts('.fusion-count span')).toEqual(['1 of 3 findings']);
    filter('GPT2');
    expect(all('.fusion-finding').map(node => node.getAttribute('data-finding'))).toEqual(['F2']);
    filter('nowhere');
    expect(all('.fusion-finding')).toEqual([]);
    filter('');
    expect(all('.fusion-finding')).toHaveLength(3);
  });

  it('puts the notebook in front first, each with its own headline', () => {
    const groups = [group([], {}, 'a.ipynb'), group([], {}, 'b.ipynb')];
    panel(groups, handlers(), groups[1].key);
    expect(texts('h3')).toEqual(['b.ipynb', 'a.ipynb']);
    expect(texts('.fusion-headline dd')).toEqual([
      '8.3 % → 71 %',
      '800 µs–1.90 ms',
      '42 %',
      '8.3 % → 71 %',
      '800 µs–1.90 ms',
      '42 %'
    ]);
  });

  it('says when nothing is worth fusing, and why', () => {
    const nothing = 'the run is one matrix product';
    panel([group([], { profiles: [{ ...PROFILE, nothing }] })]);
    expect(texts('.fusion-nothing')).toEqual([`Nothing worth fusing: ${nothing}`]);
  });

  it('explains a link that is not ready', () => {
    panel([group([], { link: 'mismatch', linkMessage: 'Install 0.2.', profiles: [] })]);
    expect(texts('.fusion-link')).toEqual(['Versions differ']);
    expect(texts('.fusion-link-message')).toEqual(['Install 0.2.']);
  });

  it('jumps on a click on the title, and not to what has no place', () => {
    const use = handlers();
    const groups = [group([shown({ id: 'F1' }), shown({ id: 'F2' }, 'stale')])];
    panel(groups, use);
    click('[data-finding=F1] .fusion-jump');
    expect(use.jump).toHaveBeenCalledWith(groups[0].key, groups[0].shown[0].finding);
    expect(box.querySelector<HTMLButtonElement>('[data-finding=F2] .fusion-jump')?.disabled).toBe(
      true
    );
  });

  it('has the buttons that the state allows', () => {
    const actions: IFinding['actions'] = ['fuse', 'apply_live', 'explain', 'ignore', 'undo'];
    const use = handlers();
    use.canUndo.mockImplementation((_, entry: IFinding) => entry.id === 'edited');
    panel(
      [
        group([
          shown({ id: 'open', actions }),
          shown({ id: 'live', actions }, 'applied'),
          shown({ id: 'edited', actions: ['fuse', 'explain'] }, 'applied'),
          shown({ id: 'stale', actions }, 'stale')
        ])
      ],
      use
    );
    const of = (id: string): (string | null)[] =>
      all(`[data-finding=${id}] button[data-action]`).map(node => node.getAttribute('data-action'));
    expect(of('open')).toEqual(['fuse', 'apply_live', 'explain', 'ignore', 'details']);
    expect(of('live')).toEqual(['explain', 'undo', 'measure', 'details']);
    expect(of('edited')).toEqual(['explain', 'undo', 'measure', 'details']);
    expect(of('stale')).toEqual(['explain', 'details']);
    click('[data-finding=live] [data-action=undo]');
    expect(use.act.mock.calls[0][2]).toBe('undo');
  });

  it('shows a job with its stage, and cancels it', () => {
    const use = handlers();
    const job = {
      req: 'r1',
      label: 'Fuse',
      finding: 'F1',
      phase: 'running' as const,
      stages: [{ name: 'compile sm_90', fraction: 0.25 }],
      message: '',
      cancellable: true
    };
    const groups = [group([], { jobs: [job] })];
    panel(groups, use);
    expect(texts('.fusion-job-line')).toEqual(['compile sm_90']);
    expect(box.querySelector('progress')?.value).toBe(0.25);
    click('.fusion-jobs button');
    expect(use.cancel).toHaveBeenCalledWith(groups[0].key, 'r1');
  });

  it('offers the review of a cell whose dialog was hidden', () => {
    const use = handlers();
    const waiting = { proposal: proposal('y = x + 1', []), source: 'y = x + 1' };
    panel([group([shown({ id: 'F1' })], { proposals: { F1: waiting } })], use);
    click('[data-finding=F1] .fusion-button-main');
    expect(use.review).toHaveBeenCalledOnce();
  });

  it('lists a hundred of a thousand, then all on request', () => {
    const many = Array.from({ length: 1000 }, (_, i) => shown({ id: `F${i}` }));
    panel([group(many)]);
    expect(all('.fusion-finding')).toHaveLength(100);
    const more = all('section > .fusion-button')[0] as HTMLElement;
    expect(more.textContent).toBe('Show 900 more');
    act(() => more.click());
    expect(all('.fusion-finding')).toHaveLength(1000);
  });

  it('shows hostile texts as text', () => {
    const evil = '</code><script>window.hacked = 1</script><img src=x onerror="window.hacked=1">';
    const entry = shown({ title: evil, message: evil, reason: evil, fusable: false });
    panel([group([entry], { notice: { text: evil, isError: true }, linkMessage: evil }, evil)]);
    expect(all('script, img')).toEqual([]);
    expect(texts('.fusion-jump')).toEqual([evil]);
    expect((window as { hacked?: number }).hacked).toBeUndefined();
  });

  it('names everything that can be reached by keyboard', () => {
    panel([group([shown({ id: 'F1' })])]);
    for (const node of all('button, input')) {
      expect(node.textContent || node.getAttribute('aria-label')).toBeTruthy();
      expect(node.getAttribute('tabindex')).toBeNull();
    }
  });
});

describe('the proposal', () => {
  const source = 'y = x * 2 + 1\nz = 0';
  const edits = [
    { start: 0, end: 0, new: '@cuda.jit\n' },
    { start: 4, end: 13, new: 'fused(x)' }
  ];

  it('shows the change by signs as well as colours', () => {
    render(<ProposalView proposal={proposal(source, edits)} source={source} />);
    const rows = all('.fusion-diff tr').map(row =>
      [...row.querySelectorAll('td')].slice(2).map(cell => cell.textContent)
    );
    expect(rows).toEqual([
      ['-', 'removed: y = x * 2 + 1'],
      ['+', 'added: @cuda.jit'],
      ['+', 'added: y = fused(x)'],
      [' ', 'z = 0']
    ]);
    expect(texts('.fusion-diff-summary')).toEqual([
      'Change of the cell: 2 lines added (+), 1 removed (-)'
    ]);
  });

  it('names the CUDA rungs, the status of each check in words, and the times', () => {
    const offered = proposal(source, edits, {
      rungs: [
        { name: 'compile for sm_90', status: 'passed', detail: '22 registers', seconds: 2.14 },
        { name: 'CUDA device', status: 'not run', detail: 'no GPU here', seconds: null }
      ],
      cuda: { compile: 'sm_90: no spills', native_ir: '28 runs, 0 mismatches' },
      timing: { eager_us: 412, fused_us: 103 }
    });
    render(<ProposalView proposal={offered} source={source} />);
    expect(texts('.fusion-cuda dd')).toEqual(['sm_90: no spills', '28 runs, 0 mismatches']);
    expect(texts('.fusion-rungs tbody tr')).toEqual([
      'compile for sm_90✓ passed22 registers2.1 s',
      'CUDA device– not runno GPU here'
    ]);
    expect(texts('.fusion-timing')).toEqual(['412 µs eager, 103 µs fused (4.00×)']);
  });

  it('shows no diff and no speed for what failed', () => {
    const failed = proposal(source, [], {
      passed: false,
      message: 'nan_tail differs',
      timing: { eager_us: 412, fused_us: 103 }
    });
    render(<ProposalView proposal={failed} source={source} />);
    expect(all('.fusion-diff, .fusion-timing')).toEqual([]);
    expect(texts('.fusion-verdict')).toEqual([
      '✗ Validation failed; nothing is edited. nan_tail differs'
    ]);
  });

  it('shows hostile code as text', () => {
    const evil = 'x = "</td><script>1</script>"';
    const offered = proposal(source, [{ start: 0, end: 0, new: `${evil}\n` }], { kernel: evil });
    render(<ProposalView proposal={offered} source={source} />);
    expect(all('script')).toEqual([]);
    expect(texts('.fusion-kernel pre')).toEqual([evil]);
  });
});

describe('smaller views', () => {
  it('a job shows the stages behind it', () => {
    const job = {
      req: 'r',
      label: 'Fuse',
      finding: null,
      phase: 'running' as const,
      stages: [
        { name: 'program', fraction: 1 },
        { name: 'inputs', fraction: 0.5 }
      ],
      message: '',
      cancellable: true
    };
    render(<JobView job={job} allStages={true} />);
    expect(texts('.fusion-stages li')).toEqual(['✓ program']);
    expect(texts('.fusion-job-line')).toEqual(['inputs']);
    render(<JobView job={{ ...job, phase: 'queued' }} allStages={true} />);
    expect(texts('.fusion-job-line')).toEqual(['Queued behind the running cell.']);
    expect(box.querySelector('progress')?.hasAttribute('value')).toBe(false);
  });

  it('details give the reasons why not', () => {
    const why_not = [{ code: 'mutated-input', message: 'relu_ writes its input' }];
    render(<DetailsView details={{ text: 'F1', rungs: [], kernel: '', why_not }} />);
    expect(texts('.fusion-why-not li')).toEqual(['mutated-input relu_ writes its input']);
  });
});
