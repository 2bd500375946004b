import { createHash } from 'node:crypto';
import { html, raw } from 'hono/html';
import type { RunRecord, SkipReason, Status } from '../run.ts';
import type { JobView } from './jobs.ts';

/**
 * This module's secret: how the jobs and their runs look. One document, drawn by the server: no script, no form, and
 * nothing from elsewhere, so that the policy can forbid all of it. Whatever comes from a record is escaped by `html`.
 */

export interface PageView {
  readonly jobs: readonly (JobView & { readonly runs: readonly RunRecord[] })[];
  /** Over all jobs, newest first. */
  readonly latest: readonly RunRecord[];
  readonly now: Date;
  /** Of this deployment, for the command that starts a first run. */
  readonly origin: string;
  /** What lies before the page's own path, where that is not the root: its links are relative. */
  readonly base: string;
  /** Service and stage, where several share a database. */
  readonly deployment?: string | undefined;
}

/** A sign besides the colour, since one man in twelve can't tell red from green. */
const looks: Readonly<Record<Status, { readonly sign: string; readonly meaning: string }>> = {
  succeeded: { sign: '✓', meaning: 'did its work, and committed it' },
  running: { sign: '▸', meaning: 'is at work' },
  failed: { sign: '×', meaning: 'threw, or could not commit' },
  timed_out: { sign: 'T', meaning: 'was stopped at its deadline' },
  lost: { sign: '?', meaning: 'lost its lock, or its holder is gone' },
  cancelled: { sign: '■', meaning: 'was called off' },
  skipped: { sign: '–', meaning: 'was turned away, with a reason' },
  missed: { sign: '!', meaning: 'was due, but never delivered' },
};

export function page(view: PageView) {
  const { jobs, latest, now, base, deployment } = view;
  return html`<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <meta name="color-scheme" content="light dark" />
        <title>Jobs and runs · Cronce</title>
        ${base === '' ? '' : html`<base href="${base}/" />`}
        <link rel="icon" href="${icon}" />
        ${raw(`<style>${style}</style>`)}
      </head>
      <body>
        <header>
          <h1>Cronce</h1>
          <p>${deployment === undefined ? '' : html`${deployment} · `}As of ${time(now.toISOString())} UTC</p>
        </header>
        <main>
          ${latest.length === 0 ? firstSteps(view) : ''} ${jobs.length === 0 ? '' : jobCards(jobs, now)}
          ${latest.length === 0 ? '' : runTable(latest)}
        </main>
        ${legend()}
      </body>
    </html>`;
}

function firstSteps({ jobs, origin, base }: PageView) {
  const [first] = jobs;
  if (!first)
    return html`<section class="hint">
      <h2>No job is defined</h2>
      <p>
        Write one in <code>functions/jobs/</code>, add it to <code>functions/jobs/index.ts</code>, and deploy.
      </p>
    </section>`;
  return html`<section class="hint">
    <h2>No run yet</h2>
    <p>A job runs when its schedule says so. To start one now:</p>
    <pre><code>curl -X POST -H "Authorization: Bearer $TOKEN" ${origin}${base}/jobs/${first.name}/runs</code></pre>
    <p>with a token of the scope <code>run</code>, then reload this page.</p>
  </section>`;
}

function jobCards(jobs: PageView['jobs'], now: Date) {
  return html`<section aria-labelledby="jobs">
    <h2 id="jobs">Jobs</h2>
    <div class="jobs">${jobs.map((job) => jobCard(job, now))}</div>
  </section>`;
}

function jobCard(job: PageView['jobs'][number], now: Date) {
  return html`<article class="job">
    <h3>${job.name} ${job.paused ? html`<span class="paused">paused</span>` : ''}</h3>
    ${job.description === '' ? '' : html`<p>${job.description}</p>`}
    <dl>
      <dt>Due</dt>
      <dd>${job.schedules.length === 0 ? 'By hand only' : job.schedules.map(scheduleLine)}</dd>
      <dt>Next</dt>
      <dd>${nextLine(job, now)}</dd>
    </dl>
    ${job.runs.length === 0 ? html`<p class="quiet">No run yet.</p>` : strip(job)}
  </article>`;
}

function scheduleLine({ inWords, expression }: JobView['schedules'][number]) {
  return html`<div>${inWords} <code>${expression}</code></div>`;
}

function nextLine({ paused, nextAt, schedules }: JobView, now: Date) {
  if (paused)
    return html`Paused since ${time(paused.at)} UTC by
    ${paused.by ?? 'someone'}${paused.reason ? `: ${paused.reason}` : ''}`;
  if (nextAt !== null)
    return html`${time(nextAt)} UTC
      <span class="quiet">in ${span(Date.parse(nextAt) - now.getTime())}</span>`;
  return schedules.length === 0 ? 'When someone asks for it' : 'Known after its first delivery';
}

/** The newest last, as in a calendar. */
function strip({ name, runs }: PageView['jobs'][number]) {
  return html`<ol class="strip" aria-label="Latest runs of ${name}, newest last">
    ${runs.toReversed().map(
      (run) =>
        html`<li>
          <a class="sign ${run.status}" href="runs/${run.id}" title="${summary(run)}">
            <span aria-hidden="true">${looks[run.status].sign}</span
            ><span class="unseen">${summary(run)}</span>
          </a>
        </li>`,
    )}
  </ol>`;
}

/** Roles are said once more, as the narrow layout's `display` would take a table's own away. */
function runTable(runs: readonly RunRecord[]) {
  return html`<section aria-labelledby="runs">
    <h2 id="runs">Latest runs</h2>
    <table role="table" aria-labelledby="runs">
      <thead role="rowgroup">
        <tr role="row">
          ${['Received, UTC', 'Job', 'Slot', 'Outcome', 'Reason', 'Attempt', 'Took'].map(
            (head) => html`<th role="columnheader" scope="col">${head}</th>`,
          )}
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${runs.map(runRow)}
      </tbody>
    </table>
    <p class="quiet">Older ones, and filters: <a href="runs">GET /runs</a></p>
  </section>`;
}

function runRow(run: RunRecord) {
  return html`<tr role="row">
    <td role="cell" class="when"><a href="runs/${run.id}">${time(run.receivedAt)}</a></td>
    <td role="cell" class="name">${run.job}</td>
    <td role="cell" class="slot">
      ${run.slot}${run.slotGuessed ? html` <span class="quiet">(guessed)</span>` : ''}${askedFor(run)}
    </td>
    <td role="cell" class="outcome">
      <span class="sign ${run.status}" aria-hidden="true">${looks[run.status].sign}</span>
      ${words(run.status)}
    </td>
    <td role="cell" class="reason">${reasonOf(run)}</td>
    <td role="cell" class="attempt">
      ${run.attempt === null ? '' : html`<span class="label">attempt </span>${run.attempt} of ${run.maxAttempts ?? '?'}`}
    </td>
    <td role="cell" class="took">${tookOf(run)}</td>
  </tr>`;
}

function askedFor({ requestedBy, requestReason }: RunRecord) {
  return requestReason === null
    ? ''
    : html` <span class="quiet">${requestedBy ?? 'someone'}: ${short(requestReason)}</span>`;
}

function legend() {
  return html`<footer>
    <h2>Signs</h2>
    <dl class="legend">
      ${Object.entries(looks).map(
        ([status, { sign, meaning }]) =>
          html`<div>
            <dt><span class="sign ${status}" aria-hidden="true">${sign}</span> ${words(status)}</dt>
            <dd>${meaning}</dd>
          </div>`,
      )}
    </dl>
  </footer>`;
}

function summary(run: RunRecord): string {
  const what = run.skipReason === null ? words(run.status) : `skipped: ${words(run.skipReason)}`;
  return [what, run.slot, tookOf(run), short(run.error?.message ?? '')].filter(Boolean).join(', ');
}

const blocked: Readonly<Record<SkipReason, string>> = {
  held: 'held by',
  duplicate: 'duplicate of',
  on_hold: 'on hold since',
  paused: 'paused by',
  too_late: 'too late for',
  off_schedule: 'off the schedule of',
};

function reasonOf(run: RunRecord) {
  const parts = [skipOf(run), delayOf(run), short(run.error?.message ?? ''), untoldOf(run)].filter(
    (part) => part !== '',
  );
  return html`${parts.map((part, index) => (index === 0 ? part : html`; ${part}`))}${run.final === false ? ' (will be tried again)' : ''}`;
}

function skipOf(run: RunRecord) {
  if (run.skipReason === null) return '';
  return run.blockedBy === null ? words(run.skipReason) : html`${blocked[run.skipReason]} ${blockerOf(run)}`;
}

function delayOf(run: RunRecord) {
  if (run.delayedMs === null) return '';
  const began = `began ${span(run.delayedMs)} later`;
  return run.blockedBy === null ? began : html`${began}, behind ${blockerOf(run)}`;
}

/** What is only late goes out by itself. */
function untoldOf({ publishError }: RunRecord): string {
  if (!publishError?.givenUp) return '';
  const whom = publishError.failures.map(({ sink, code }) => `${sink} (${code})`).join(', ');
  return `given up telling ${short(whom)}`;
}

/** Another deployment's run is shown by that one, and not here. */
function blockerOf({ blockedBy, blockedByDeployment, deployment }: RunRecord) {
  return blockedByDeployment === null || blockedByDeployment === deployment
    ? html`<a href="runs/${blockedBy}">this run</a>`
    : html`a run of ${blockedByDeployment}`;
}

function short(text: string): string {
  return text.length > 200 ? `${text.slice(0, 200).trimEnd()}…` : text;
}

function tookOf({ startedAt, finishedAt }: RunRecord): string {
  return startedAt === null || finishedAt === null
    ? ''
    : span(Date.parse(finishedAt) - Date.parse(startedAt));
}

function words(status: string): string {
  return status.replaceAll('_', ' ');
}

/** `2026-11-29 12:00:05`; the zone stands beside it. */
function time(iso: string) {
  return html`<time datetime="${iso}">${iso.slice(0, 19).replace('T', ' ')}</time>`;
}

/** `40 ms`, `1.2 s`, `3 min`, `5 h`, `2 days`. */
function span(ms: number): string {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${Number((ms / 1_000).toFixed(1))} s`;
  if (ms < 3_600_000) return `${Math.round(ms / 60_000)} min`;
  return ms < 172_800_000 ? `${Math.round(ms / 3_600_000)} h` : `${Math.round(ms / 86_400_000)} days`;
}

const icon = `data:image/svg+xml,${encodeURIComponent(
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="4" fill="#1a7f37"/><path d="M4 8.5l3 3 5-6" fill="none" stroke="#fff" stroke-width="2"/></svg>',
)}`;

const style = `
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --card: #fff; --line: #d9dee4; --text: #1c2128; --quiet: #59636e; --link: #0a58b8;
  --succeeded: #1a7f37; --running: #0969da; --failed: #cf222e; --timed_out: #a44a06; --lost: #7a3fc8;
  --cancelled: #59636e; --missed: #a8296f; --note: #fff8e1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #0e1116; --card: #171b22; --line: #30363f; --text: #e4e8ee; --quiet: #9ba5b1; --link: #79b4ff;
    --note: #2a2415;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 76rem; padding: 0 1.5rem 2rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif;
}
header { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between; gap: 0 1rem; padding: 1.25rem 0 0; }
h1 { margin: 0; font-size: 1.5rem; letter-spacing: -0.01em; }
h2 { margin: 1.75rem 0 0.75rem; font-size: 1.05rem; }
h3 { margin: 0; font-size: 1rem; overflow-wrap: anywhere; }
p { margin: 0; }
a { color: var(--link); text-underline-offset: 0.15em; }
a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 3px; }
code, pre, .slot { font: 0.86em/1.5 ui-monospace, Menlo, Consolas, monospace; }
header p, .quiet { color: var(--quiet); }
time, .attempt, .took { font-variant-numeric: tabular-nums; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.hint, .job, table { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.hint { margin-top: 1.5rem; padding: 1rem 1.25rem; }
.hint h2 { margin: 0 0 0.25rem; }
.hint pre { margin: 0.5rem 0; padding: 0.6rem 0.8rem; background: var(--ground); border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
.jobs { display: grid; gap: 0.9rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.job { display: flex; flex-direction: column; gap: 0.4rem; padding: 1rem 1.1rem; }
.job dl { display: grid; grid-template-columns: auto 1fr; gap: 0.15rem 0.75rem; margin: 0.2rem 0; }
.job dt { color: var(--quiet); }
.job dd { margin: 0; }
.job dd code { color: var(--quiet); white-space: nowrap; }
.paused { margin-left: 0.35rem; padding: 0.05rem 0.5rem; border: 1px solid currentColor; border-radius: 1rem; color: var(--quiet); font-size: 0.75rem; font-weight: 500; vertical-align: 0.1em; }
.strip { display: flex; flex-wrap: wrap; gap: 4px; margin: auto 0 0; padding: 0.4rem 0 0; list-style: none; }
.sign {
  display: inline-flex; align-items: center; justify-content: center; width: 1.5em; height: 1.5em; border-radius: 4px;
  border: 1px solid transparent; color: #fff; font: 700 0.82rem/1 system-ui, sans-serif; text-decoration: none;
}
.strip .sign { width: 26px; height: 26px; position: relative; }
.succeeded { background: var(--succeeded); } .running { background: var(--running); } .failed { background: var(--failed); }
.timed_out { background: var(--timed_out); } .lost { background: var(--lost); } .cancelled { background: var(--cancelled); }
.missed { background: var(--missed); }
.skipped { color: var(--quiet); border-color: var(--line); background: transparent; }
table { width: 100%; border-collapse: separate; border-spacing: 0; font-size: 0.92rem; }
th, td { padding: 0.45rem 0.75rem; text-align: left; vertical-align: top; }
th { color: var(--quiet); font-weight: 500; white-space: nowrap; }
td { border-top: 1px solid var(--line); }
.when, .outcome, .attempt, .took { white-space: nowrap; }
.name { min-width: 9rem; overflow-wrap: break-word; }
.slot { min-width: 13.5rem; overflow-wrap: anywhere; }
.reason { overflow-wrap: anywhere; }
.outcome .sign { margin-right: 0.25rem; }
table + p { margin-top: 0.6rem; }
.label { display: none; }
footer { margin-top: 2rem; border-top: 1px solid var(--line); color: var(--quiet); font-size: 0.88rem; }
footer h2 { margin: 1rem 0 0.5rem; font-size: 0.88rem; }
.legend { display: grid; gap: 0.3rem 1.5rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); margin: 0; }
.legend div { display: flex; gap: 0.5rem; }
.legend dt { white-space: nowrap; color: var(--text); }
.legend dd { margin: 0; }
@media (max-width: 46rem) {
  body { padding: 0 1rem 1.5rem; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table, tbody { display: block; }
  tr {
    display: grid; grid-template: "outcome when" "name took" "slot attempt" "reason reason" / 1fr auto; gap: 0.1rem 0.75rem;
    padding: 0.65rem 0.9rem; border-top: 1px solid var(--line);
  }
  tbody tr:first-child { border-top: 0; }
  td { padding: 0; border: 0; }
  td:empty { display: none; }
  .name, .slot { min-width: 0; }
  .when { grid-area: when; } .name { grid-area: name; } .slot { grid-area: slot; } .outcome { grid-area: outcome; }
  .reason { grid-area: reason; color: var(--quiet); } .attempt { grid-area: attempt; } .took { grid-area: took; }
  .when, .took, .attempt { text-align: right; }
  .name { font-weight: 600; }
  .slot { color: var(--quiet); }
  .label { display: inline; }
}
`;

/** For the page alone: its one style sheet, named by its digest, and its icon. */
export const pagePolicy = (base: string) =>
  [
    "default-src 'none'",
    `style-src 'sha256-${createHash('sha256').update(style).digest('base64')}'`,
    'img-src data:',
    base === '' ? "base-uri 'none'" : "base-uri 'self'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; ');
