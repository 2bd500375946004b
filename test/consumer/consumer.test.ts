/**
 * Whoever installs the package: from the tarball, in folders of their own, by the commands that README gives. What a
 * checkout has beside it (tsx, the sources) is not there.
 */
import { execFile, type ExecFileOptions } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { budgetKb } from '../support/budget.ts';
import { root } from '../support/checkout.ts';
import { cleanUp, freePlace, osls, run, until, untilUp } from '../support/local.ts';

/** An installation, on a busy machine. */
const longMs = 400_000;

/** Of the framework's own dependency. */
interface Zip {
  readonly loadAsync: (bytes: Buffer) => Promise<{ readonly files: Readonly<Record<string, unknown>> }>;
}

interface Said {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

/** On disk: what is installed takes hundreds of MB. */
let scratch: string;
let tarball: string;
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'cronce-consumer-'));
  await node(root, '--import', 'tsx', 'infra/pack.ts');
  const { out } = await command(
    'npm',
    ['pack', '--ignore-scripts', '--silent', '--pack-destination', scratch],
    root,
  );
  tarball = join(scratch, out.trim());
}, longMs);
afterAll(async () => {
  await cleanUp();
  await rm(scratch, { recursive: true, force: true });
}, longMs);

/** What npm and the test runner hand down of this checkout; the registry and its cache are the machine's. */
const ofThisRun = /^(npm_(?!config_(registry|cache|userconfig|globalconfig)$)|VITEST|NODE_ENV)/;

async function command(file: string, args: readonly string[], cwd: string): Promise<Said> {
  const { DATABASE_URL: _url, ...rest } = process.env;
  const env = Object.fromEntries(Object.entries(rest).filter(([key]) => !ofThisRun.test(key)));
  const options: ExecFileOptions = { cwd, env, maxBuffer: 2 ** 26 };
  const ended = promisify(execFile)(file, [...args], options).then(
    ({ stdout, stderr }) => ({ code: 0, out: String(stdout), err: String(stderr) }),
    (error: unknown) => {
      const { code, stdout, stderr } = error as { code: number; stdout: string; stderr: string };
      return { code, out: stdout, err: stderr };
    },
  );
  return ended;
}

async function node(cwd: string, ...args: readonly string[]): Promise<Said> {
  return done(await command(process.execPath, args, cwd));
}

async function npm(cwd: string, ...args: readonly string[]): Promise<Said> {
  return done(await command('npm', [...args, '--no-audit', '--no-fund', '--prefer-offline'], cwd));
}

async function npx(cwd: string, ...args: readonly string[]): Promise<Said> {
  return command('npx', ['--no-install', ...args], cwd);
}

function done(said: Said): Said {
  expect([said.code, said.code === 0 ? '' : said.out + said.err]).toEqual([0, '']);
  return said;
}

async function filesIn(folder: string): Promise<readonly string[]> {
  const all = await readdir(folder, { recursive: true, withFileTypes: true });
  return all
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1))
    .filter((file) => !/^(node_modules|\.build|\.cronce|\.serverless)\//.test(file))
    .sort();
}

async function contentsOf(folder: string): Promise<Readonly<Record<string, string>>> {
  const files = await filesIn(folder);
  const texts = await Promise.all(files.map(async (file) => readFile(join(folder, file), 'utf8')));
  return Object.fromEntries(files.map((file, index) => [file, texts[index] ?? '']));
}

/** As the project's own dependencies would be; the same as this checkout's, so that nothing is fetched twice. */
async function versionsOf(...names: readonly string[]): Promise<readonly string[]> {
  const from = createRequire(join(root, 'package.json'));
  return names.map((name) => `${name}@${(from(`${name}/package.json`) as { version: string }).version}`);
}

describe('the package', () => {
  it('is what its exports say, for each way to resolve them', { timeout: longMs }, async () => {
    expect((await npx(root, 'publint', tarball)).out).toContain('All good!');
    done(await npx(root, 'attw', tarball, '--profile', 'esm-only'));
  });

  it('holds what is needed to run, and nothing of the tests or of this deployment', async () => {
    const { out } = await command('tar', ['-tzf', tarball], root);
    const files = out.trim().split('\n');
    expect(
      files.filter((file) =>
        /test(s|-|\/|\.ts)|\/functions\/(?!.*template)|examples/.test(file.replace(/template\/.*/, '')),
      ),
    ).toEqual([]);
    for (const file of ['LICENSE', 'README.md', 'dist/src/index.js', 'dist/infra/sql/claim.sql'])
      expect(files).toContain(`package/${file}`);
    expect(files.filter((file) => /(?<!\.d)\.ts$/.test(file) && !file.includes('/template/'))).toEqual([]);
  });
});

describe('in an empty folder', { timeout: longMs }, () => {
  let folder: string;
  beforeAll(async () => {
    folder = join(scratch, 'my-jobs');
    await mkdir(folder);
    await npm(folder, 'init', '-y');
    await npm(folder, 'install', tarball);
    done(await npx(folder, 'cronce', 'init'));
  }, longMs);

  it('init writes a project, and a second one leaves all of it as it is', async () => {
    expect(await filesIn(folder)).toEqual([
      '.env.example',
      '.gitignore',
      'functions/http.ts',
      'functions/jobs/count-connections.ts',
      'functions/jobs/index.ts',
      'functions/scheduled.ts',
      'functions/sweep.ts',
      'package-lock.json',
      'package.json',
      'serverless.yml',
      'test/count-connections.test.ts',
      'tsconfig.json',
    ]);
    await writeFile(join(folder, 'functions/http.ts'), '// mine\n', { flag: 'a' });
    const before = await contentsOf(folder);
    const again = done(await npx(folder, 'cronce', 'init'));
    expect(again.out).not.toContain('wrote');
    expect(await contentsOf(folder)).toEqual(before);
  });

  it('dev has a page with a running job', async () => {
    const place = await freePlace();
    const started = performance.now();
    const dev = run([join(folder, 'node_modules/.bin/cronce'), 'dev', ...place.flags], { cwd: folder });
    await untilUp(place, dev);
    await until(async () => /count-connections .*succeeded/.exec(dev.said())?.[0], dev.ended);
    console.log(`dev: a run after ${((performance.now() - started) / 1_000).toFixed(1)} s`);
    const token = (await readFile(join(place.folder, 'token'), 'utf8')).trim();
    const page = await fetch(place.url, { headers: { authorization: `Basic ${btoa(`:${token}`)}` } });
    expect([page.status, await page.text()]).toMatchObject([
      200,
      expect.stringContaining('count-connections'),
    ]);
    dev.process.kill('SIGINT');
    expect([await dev.ended, await dev.stderr]).toEqual([0, '']);
  });

  it('packages, with bundles no larger than this repository’s own', async () => {
    done(await npx(folder, 'osls', 'package'));
    const { out } = done(await npx(folder, 'cronce', 'build'));
    const [, kb] = /scheduled\.js {2}(\d+) KB/.exec(out) ?? [];
    expect(Number(kb)).toBeGreaterThan(100);
    expect(Number(kb)).toBeLessThan(budgetKb.all);
  });

  it('passes its own type check and test', async () => {
    await npm(folder, 'install', '--save-dev', ...(await versionsOf('typescript', '@types/node', 'tsx')));
    done(await npx(folder, 'tsc'));
    const tested = done(await npx(folder, 'tsx', '--test', 'test/count-connections.test.ts'));
    expect(tested.out).toMatch(/pass 1\b/);
  });

  it.each([
    ['nodenext', 'nodenext'],
    ['esnext', 'bundler'],
  ])(
    'its types resolve under module %s, resolution %s, with all libraries checked',
    async (module, resolution) => {
      const config = {
        compilerOptions: {
          module,
          moduleResolution: resolution,
          target: 'es2023',
          lib: ['es2023'],
          strict: true,
          noEmit: true,
          skipLibCheck: false,
          types: ['node'],
        },
        files: ['uses.mts'],
      };
      await writeFile(join(folder, 'tsconfig.uses.json'), JSON.stringify(config));
      await writeFile(
        join(folder, 'uses.mts'),
        `import { coordinate, defineJob, defineJobs, type Job, type RunRecord } from 'cronce';
       import { createApp } from 'cronce/http';
       import { deploymentOf, migrate, openProject } from 'cronce/infra';
       import { scheduledHandler } from 'cronce/lambda';
       import { eventBridgeSink, type Sink } from 'cronce/sinks';
       import { openTestbed } from 'cronce/testing';
       const job: Job = defineJob({ name: 'one', work: async ({ tx }) => (await tx.query<{ n: number }>('SELECT 1 AS n')).rows[0]?.n });
       const sink: Sink = eventBridgeSink({ bus: 'outcomes' });
       export const all = [coordinate, createApp, deploymentOf, migrate, openProject, openTestbed, sink];
       export const handler = scheduledHandler({ registry: defineJobs([job]) });
       export const statusOf = (run: RunRecord) => run.status;`,
      );
      done(await npx(folder, 'tsc', '-p', 'tsconfig.uses.json'));
    },
  );
});

describe('in a folder with a serverless.yml of its own', { timeout: longMs }, () => {
  let folder: string;
  const own = {
    'package.json': '{ "name": "@acme/shop", "version": "1.0.0", "private": true }\n',
    'src/hello.js': `exports.handler = async () => ({ statusCode: 200, body: 'hello' });\n`,
    'functions/mine.js': 'exports.handler = async () => 1;\n',
    'tsconfig.json': '{ "compilerOptions": { "strict": true } }\n',
    'serverless.yml': `service: shop
provider:
  name: aws
  runtime: nodejs24.x
functions:
  hello:
    handler: src/hello.handler
    events:
      - httpApi: GET /hello
resources:
  Resources:
    Mine:
      Type: AWS::SQS::Queue
      Properties:
        QueueName: !Sub mine-\${AWS::AccountId}
plugins:
  - serverless-offline
`,
  } as const;

  beforeAll(async () => {
    folder = join(scratch, 'shop');
    for (const [file, text] of Object.entries(own)) {
      await mkdir(join(folder, file, '..'), { recursive: true });
      await writeFile(join(folder, file), text);
    }
    await npm(folder, 'install', '--save-dev', tarball);
  }, longMs);

  it('init touches nothing that is there, and README’s line adds Cronce to it', async () => {
    const before = await contentsOf(folder);
    const { out } = done(await npx(folder, 'cronce', 'init'));
    expect(await contentsOf(folder)).toMatchObject(before);
    const [lines = ''] = /plugins:\n {2}- cronce\/serverless\n/.exec(out) ?? [];
    const readme = await readFile(join(root, 'README.md'), 'utf8');
    expect(readme).toContain(lines);
    await writeFile(join(folder, 'serverless.yml'), own['serverless.yml'].replace('plugins:\n', lines));
  });

  it('packages both, each with what it needs alone', async () => {
    done(await npx(folder, 'osls', 'package'));
    const text = await readFile(
      join(folder, '.serverless/cloudformation-template-update-stack.json'),
      'utf8',
    );
    const { Resources } = JSON.parse(text) as {
      Resources: Record<string, { Properties: Record<string, unknown> }>;
    };
    expect(Object.keys(Resources)).toEqual(
      expect.arrayContaining([
        'Mine',
        'HelloLambdaFunction',
        'HttpLambdaFunction',
        'SweepLambdaFunction',
        'CountDashconnectionsLambdaFunction',
        'DeadLetters',
      ]),
    );
    const listOf = async (zip: string) => {
      const bytes = await readFile(join(folder, `.serverless/${zip}.zip`));
      return Object.keys((await (createRequire(osls)('jszip') as Zip).loadAsync(bytes)).files);
    };
    const theirs = await listOf('shop');
    expect(theirs).toContain('src/hello.js');
    expect(
      theirs.filter((file) => /^(\.build|\.cronce|node_modules\/(cronce|serverless))\//.test(file)),
    ).toEqual([]);
    const ours = await listOf('count-connections');
    expect(ours).toContain('.build/scheduled.js');
    expect(ours.filter((file) => !file.startsWith('.build/'))).toEqual([]);
  });

  it('dev serves both', async () => {
    const place = await freePlace();
    const dev = run([join(folder, 'node_modules/.bin/cronce'), 'dev', ...place.flags], { cwd: folder });
    await untilUp(place, dev);
    expect(await (await fetch(`${place.url}/hello`)).text()).toBe('hello');
    await until(async () => /count-connections .*succeeded/.exec(dev.said())?.[0], dev.ended);
    dev.process.kill('SIGINT');
    expect(await dev.ended).toBe(0);
  });

  it('says which name is taken', async () => {
    const taken = own['serverless.yml']
      .replace('  hello:', '  http:')
      .replace('plugins:\n', 'plugins:\n  - cronce/serverless\n');
    await writeFile(join(folder, 'serverless.yml'), taken);
    const { code, err } = await npx(folder, 'osls', 'package');
    expect([code, err]).toEqual([
      1,
      'serverless: serverless.yml has a function "http", as Cronce has; rename yours\n',
    ]);
  });
});

it.each([
  [
    'a folder without a project',
    {},
    /^cronce build: there is no functions\/jobs\/index\.ts in .*; npx cronce init writes one\n$/,
  ],
  [
    'a registry that is none',
    { 'functions/jobs/index.ts': 'export const jobs = [];' },
    /^cronce build: functions\/jobs\/index\.ts exports no registry; add: export const registry = /,
  ],
  [
    'a job that is no TypeScript',
    { 'functions/jobs/index.ts': 'export const = 1;' },
    /^cronce build: functions\/jobs\/index\.ts:1:13: Expected identifier but found "="\n$/,
  ],
] as const)('says in one line what is wrong with %s', { timeout: longMs }, async (name, files, message) => {
  const folder = join(scratch, name.replaceAll(' ', '-'));
  await mkdir(join(folder, 'functions/jobs'), { recursive: true });
  for (const [file, text] of Object.entries(files)) await writeFile(join(folder, file), text);
  const bin = join(scratch, 'my-jobs/node_modules/cronce/dist/infra/cli/cronce.js');
  const { code, err } = await command(process.execPath, [bin, 'build'], folder);
  expect(code).toBe(1);
  expect(err).toMatch(message);
});
