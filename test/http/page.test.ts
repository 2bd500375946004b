/** The page in a real browser, where there is one. */
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { chromium, type Browser, type Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createApp } from '../../src/http/app.ts';
import type { Registry } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { byHand, deliver, jobs, makeEveryOutcome, silent } from '../support/runs.ts';

const browserAt = '/usr/bin/chromium';
const hasBrowser = existsSync(browserAt);
if (!hasBrowser)
  console.log(`page.test.ts is skipped: there is no ${browserAt} (Debian: apt-get install chromium)`);

const token = 'read-token-0123456789';
const arguments_ = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking'];

async function serve(url: string, registry: Registry): Promise<{ origin: string; close: () => void }> {
  const app = createApp({
    registry,
    readTokens: [token],
    runTokens: [],
    openSession: async () => Session.open({ url, driver: 'pg', connectTimeoutMs: 5_000 }),
    startRun: async () => undefined,
    now: () => new Date(),
    logger: silent,
  });
  const server = createServer((request, response) => {
    const headers = new Headers(Object.entries(request.headers) as [string, string][]);
    void (async () => {
      const answer = await app.request(request.url ?? '', { method: request.method ?? 'GET', headers });
      response.writeHead(answer.status, Object.fromEntries(answer.headers));
      response.end(await answer.text());
    })();
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, close };
}

// Run inside the page, so given as text: this project's own code has no DOM.

const structure = `({
  lang: document.documentElement.lang,
  title: document.title,
  headings: [...document.querySelectorAll('h1,h2,h3,h4')].map((h) => h.tagName).join(' '),
  main: document.querySelectorAll('main').length,
  scripts: document.querySelectorAll('script,[style],[onclick]').length,
  headersWithoutScope: document.querySelectorAll('th:not([scope])').length,
  headers: [...document.querySelectorAll('th')].map((th) => th.textContent.trim()),
  cellsAskew: [...document.querySelectorAll('tbody tr')].filter((tr) => tr.cells.length !== 7).length,
  namelessLinks: [...document.querySelectorAll('a')].filter((a) => a.textContent.trim() === '').length,
  doubleIds: [...document.querySelectorAll('[id]')].filter((e) => document.querySelectorAll('#' + e.id).length > 1).length,
  brokenLabels: [...document.querySelectorAll('[aria-labelledby]')]
    .filter((e) => !document.getElementById(e.getAttribute('aria-labelledby'))).length,
  styled: getComputedStyle(document.querySelector('.job')).borderRadius,
})`;

/** WCAG's contrast of each text with the nearest ground behind it: those below 4.5 to 1. */
const faintTexts = `(() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => channels(color).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (channels(color)[3] !== 0) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...document.body.querySelectorAll('*')]
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
    .map((e) => {
      const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
      return { text: e.className + ': ' + e.textContent.trim(), ratio: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) };
    })
    .filter(({ ratio }) => ratio < 4.5);
})()`;

const overflow = 'document.documentElement.scrollWidth - document.documentElement.clientWidth';

describe.skipIf(!hasBrowser)('the page in a browser', () => {
  let browser: Browser;
  let full: TestDatabase;
  let empty: TestDatabase;
  beforeAll(async () => {
    browser = await chromium.launch({ executablePath: browserAt, args: arguments_ });
    [full, empty] = [await freshDatabase(), await freshDatabase()];
    await makeEveryOutcome(full);
    await deliver(full.url, { job: byHand, slot: `manual:${'k'.repeat(200)}`, trigger: 'manual' }, 'return');
  });
  afterAll(async () => {
    await browser.close();
    await full.drop();
    await empty.drop();
  });

  interface Look {
    readonly database?: TestDatabase;
    readonly registry?: Registry;
  }

  /** Logs in as a person would, by the browser's own dialog. */
  async function look({ database = full, registry = jobs }: Look = {}) {
    const { origin, close } = await serve(database.url, registry);
    const context = await browser.newContext({
      httpCredentials: { username: 'anyone', password: token },
    });
    onTestFinished(async () => {
      await context.close();
      close();
    });
    const page: Page = await context.newPage();
    const complaints: string[] = [];
    const requests: string[] = [];
    page.on('console', (message) => complaints.push(message.text()));
    page.on('pageerror', (error) => complaints.push(error.message));
    page.on('request', (request) => requests.push(request.url()));
    const response = await page.goto(`${origin}/`);
    expect(response?.status()).toBe(200);
    return { page, complaints, requests, origin };
  }

  test('is drawn without a complaint, and asks for nothing but itself', async () => {
    const { page, complaints, requests, origin } = await look();
    expect(await page.locator('.strip .sign').count()).toBeGreaterThan(10);
    expect(complaints).toEqual([]);
    expect(requests.filter((url) => !url.startsWith('data:'))).toEqual([`${origin}/`]);
  });

  test('has the structure that a screen reader needs', async () => {
    const { page } = await look();
    expect(await page.evaluate(structure)).toEqual({
      lang: 'en',
      title: 'Jobs and runs · Cronce',
      headings: 'H1 H2 H3 H3 H3 H2 H2',
      main: 1,
      scripts: 0,
      headersWithoutScope: 0,
      headers: ['Received, UTC', 'Job', 'Slot', 'Outcome', 'Reason', 'Attempt', 'Took'],
      cellsAskew: 0,
      namelessLinks: 0,
      doubleIds: 0,
      brokenLabels: 0,
      styled: '8px',
    });
    await page.setViewportSize({ width: 390, height: 900 });
    expect(await page.getByRole('table').count()).toBe(1);
    expect(await page.getByRole('row').count()).toBeGreaterThan(10);
    expect(await page.getByRole('cell', { name: 'timed out' }).count()).toBe(1);
  });

  test.each([
    ['with runs', () => look()],
    ['without any', () => look({ database: empty })],
    ['without jobs', () => look({ database: empty, registry: new Map() })],
  ])('can be read in light and dark, on a desk and on a phone: %s', async (_, show) => {
    const { page } = await show();
    for (const colorScheme of ['light', 'dark'] as const)
      for (const width of [1280, 390, 320]) {
        await page.emulateMedia({ colorScheme });
        await page.setViewportSize({ width, height: 900 });
        expect(await page.evaluate(faintTexts)).toEqual([]);
        expect(await page.evaluate(overflow)).toBe(0);
      }
  });

  test('leads from a square to the run that it stands for', async () => {
    const { page, origin } = await look();
    const square = page.locator('.strip .failed').first();
    expect(await square.getAttribute('title')).toMatch(
      /^failed, 2026-11-29T06:05:00Z, \d+ ms, the mail server said/,
    );
    await square.click();
    expect(page.url()).toMatch(new RegExp(`^${origin}/runs/[0-9a-f-]{36}$`));
    expect(JSON.parse(await page.innerText('pre'))).toMatchObject({ job: 'tidy', status: 'failed' });
  });
});
