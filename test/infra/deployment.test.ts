import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { build } from '../../infra/build.ts';
import { DeploymentError, deploymentOf } from '../../infra/deployment.ts';
import { openProject } from '../../infra/project.ts';
import { declareJob, defineJob, type Job, type JobOptions } from '../../src/job.ts';
import { root } from '../support/checkout.ts';
import { SettingsError } from '../../src/settings.ts';

interface Template {
  readonly Resources: Record<string, { Type: string; Properties: Record<string, unknown> }>;
}

const osls = createRequire(import.meta.url).resolve('serverless/bin/serverless.js');
const { jobs: deployedJobs } = await openProject(root);
const work = async () => null;

describe('the packaged template', () => {
  let folder: string;
  let resources: Template['Resources'];
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'cronce-package-'));
    await build(root);
    const env = { PATH: process.env['PATH'], HOME: process.env['HOME'], CRONCE_EVENT_BUS: 'outcomes' };
    await promisify(execFile)(process.execPath, [osls, 'package', '--package', folder], { cwd: root, env });
    const text = await readFile(join(folder, 'cloudformation-template-update-stack.json'), 'utf8');
    resources = (JSON.parse(text) as Template).Resources;
  });
  afterAll(async () => rm(folder, { recursive: true, force: true }));

  it.each(deployedJobs)('has a function for $name, with the limits of the job', (job) => {
    const [id, { Properties }] = functionOf(job);
    expect(Properties).toMatchObject({
      FunctionName: `cronce-dev-${job.name}`,
      Handler: job.name === 'sweep' ? '.build/sweep.handler' : '.build/scheduled.handler',
      Runtime: 'nodejs24.x',
      Timeout: Math.ceil((job.timeoutMs + (job.lockDelayMs ?? 15_000)) / 1_000) + 10,
      Environment: { Variables: { CRONCE_JOB: job.name, DATABASE_URL: '', CRONCE_EVENT_BUS: 'outcomes' } },
    });
    expect(propertiesOf('AWS::Lambda::EventInvokeConfig')).toContainEqual(
      expect.objectContaining({
        FunctionName: { Ref: id },
        MaximumRetryAttempts: job.retries,
        MaximumEventAgeInSeconds: 21_600,
        DestinationConfig: { OnFailure: { Destination: { 'Fn::GetAtt': ['DeadLetters', 'Arn'] } } },
      }),
    );
  });

  it.each(deployedJobs)('has the schedules of $name, and they may invoke it', (job) => {
    const [id] = functionOf(job);
    const arn = { 'Fn::GetAtt': [id, 'Arn'] };
    job.schedules.forEach(({ schedule: { expression }, timeZone, via }, index) => {
      if (via === 'scheduler') {
        expect(propertiesOf('AWS::Scheduler::Schedule')).toContainEqual(
          expect.objectContaining({
            ScheduleExpression: expression,
            ScheduleExpressionTimezone: timeZone,
            Target: expect.objectContaining({
              Arn: arn,
              Input: `{"job":"${job.name}","schedule":${index},"scheduledTime":"<aws.scheduler.scheduled-time>"}`,
            }) as unknown,
          }),
        );
        return;
      }
      const [ruleId, rule] = only(
        ofType('AWS::Events::Rule').filter(([, { Properties }]) =>
          targetOf(Properties).includes(`["${id}","Arn"]`),
        ),
      );
      expect(rule.Properties).toMatchObject({
        ScheduleExpression: expression,
        State: 'ENABLED',
        Targets: [
          {
            Arn: arn,
            InputTransformer: {
              InputPathsMap: { time: '$.time', id: '$.id' },
              InputTemplate: `{"job":"${job.name}","schedule":${index},"scheduledTime":<time>,"eventId":<id>}`,
            },
          },
        ],
      });
      expect(propertiesOf('AWS::Lambda::Permission')).toContainEqual({
        FunctionName: arn,
        Action: 'lambda:InvokeFunction',
        Principal: 'events.amazonaws.com',
        SourceArn: { 'Fn::GetAtt': [ruleId, 'Arn'] },
      });
    });
  });

  it('schedules nothing else', () => {
    const all = [...ofType('AWS::Events::Rule'), ...ofType('AWS::Scheduler::Schedule')];
    expect(all).toHaveLength(deployedJobs.flatMap(({ schedules }) => schedules).length);
  });

  const statements = (id: string) => {
    const { Policies } = resources[id]?.Properties as {
      Policies: [{ PolicyDocument: { Statement: { Action: string | string[]; Resource: unknown[] }[] } }];
    };
    return Policies[0].PolicyDocument.Statement;
  };

  it('lets the HTTP function start jobs, and jobs publish and start themselves, and neither do more', () => {
    const actions = (id: string) => statements(id).flatMap(({ Action }) => Action);
    const logs = ['logs:CreateLogStream', 'logs:PutLogEvents'];
    expect(actions('HttpRole')).toEqual([...logs, 'lambda:InvokeFunction']);
    for (const { name } of deployedJobs.filter((job) => job.name !== 'sweep')) {
      const [id, { Properties: itself }] = functionOf({ name });
      const of = (itself['Role'] as { 'Fn::GetAtt': [string] })['Fn::GetAtt'][0];
      expect(id).toBe(of.replace(/^JobRole/, '') + 'LambdaFunction');
      expect(actions(of)).toEqual([...logs, 'sqs:SendMessage', 'events:PutEvents', 'lambda:InvokeFunction']);
      const own = `arn:\${AWS::Partition}:lambda:\${AWS::Region}:\${AWS::AccountId}:function:cronce-dev-${name}`;
      expect(statements(of).at(-1)?.Resource, 'its own function alone').toEqual([{ 'Fn::Sub': own }]);
    }
    expect(resources).not.toHaveProperty('JobRole');
    expect(actions('SchedulerRole')).toEqual(['lambda:InvokeFunction', 'sqs:SendMessage']);
  });

  it('refers to nothing that it does not have', () => {
    const referred = [...JSON.stringify(resources).matchAll(/"Fn::GetAtt":\["(\w+)"|"Ref":"(\w+)"/g)];
    const missing = referred.map(([, got, ref]) => got ?? ref ?? '').filter((id) => !(id in resources));
    expect(missing).toEqual([]);
  });

  function ofType(type: string) {
    return Object.entries(resources).filter(([, { Type }]) => Type === type);
  }

  function propertiesOf(type: string) {
    return ofType(type).map(([, { Properties }]) => Properties);
  }

  function functionOf({ name }: Pick<Job, 'name'>) {
    const named = (properties: Record<string, unknown>) =>
      properties['FunctionName'] === `cronce-dev-${name}`;
    return only(ofType('AWS::Lambda::Function').filter(([, { Properties }]) => named(Properties)));
  }

  function targetOf(properties: Record<string, unknown>): string {
    return JSON.stringify(properties['Targets']);
  }
});

describe('a deployment', () => {
  const deployed = (job: Job, environment = {}) =>
    deploymentOf({ service: 'cronce', stage: 'test', environment, jobs: [job] });

  it('is named by service and stage in each of its functions, or as the environment names it', () => {
    const job = defineJob({ name: 'tidy-up', work });
    const namesIn = (environment: NodeJS.ProcessEnv) =>
      Object.values(deployed(job, environment).functions).map(
        (made) => made.environment['CRONCE_DEPLOYMENT'],
      );
    expect(namesIn({})).toEqual(['cronce-test', 'cronce-test']);
    expect(namesIn({ CRONCE_DEPLOYMENT: '' })).toEqual(['cronce-test', 'cronce-test']);
    expect(namesIn({ CRONCE_DEPLOYMENT: 'shop-eu' })).toEqual(['shop-eu', 'shop-eu']);
    expect(() => namesIn({ CRONCE_DEPLOYMENT: 'a/b' })).toThrow(SettingsError);
  });

  it('keeps what only EventBridge Scheduler knows, and disables what is disabled', () => {
    const schedule = {
      at: 'rate(1 hour)',
      flexibleMinutes: 5,
      start: '2027-01-01T00:00:00Z',
      enabled: false,
    };
    const { Resources } = deployed(defineJob({ name: 'tidy-up', schedule, work })).resources;
    expect(Resources['TidyDashupSchedule0']?.Properties).toMatchObject({
      FlexibleTimeWindow: { Mode: 'FLEXIBLE', MaximumWindowInMinutes: 5 },
      StartDate: '2027-01-01T00:00:00.000Z',
      State: 'DISABLED',
    });
  });

  it('disables every schedule of a job that is disabled', () => {
    const job = defineJob({ name: 'tidy-up', schedule: 'rate(1 hour)', enabled: false, work });
    expect(deployed(job).resources.Resources['TidyDashupSchedule0']?.Properties['State']).toBe('DISABLED');
  });

  it('gives waiting its time, and never more than Lambda has', () => {
    const job = (timeoutMs: number) =>
      defineJob({ name: 'a', overlap: 'wait', waitMs: 20_000, timeoutMs, work });
    expect(deployed(job(60_000)).functions['a']?.timeout).toBe(105);
    expect(deployed(job(870_000)).functions['a']?.timeout).toBe(900);
  });

  it('gives the lock delay its time: the job’s, else its lease, else the deployment’s', () => {
    const timeoutOf = (options: Partial<JobOptions>, environment = {}) =>
      deployed(defineJob({ name: 'a', timeoutMs: 60_000, work, ...options }), environment).functions['a']
        ?.timeout;
    expect(timeoutOf({})).toBe(85);
    expect(timeoutOf({}, { CRONCE_LEASE_MS: '30000' })).toBe(100);
    expect(timeoutOf({ leaseMs: 20_000 })).toBe(90);
    expect(timeoutOf({ leaseMs: 20_000, lockDelayMs: 40_000 })).toBe(110);
    expect(timeoutOf({ lockDelayMs: 0 })).toBe(70);
    const jobs = [
      defineJob({ name: 'a', lock: 'shared', lockDelayMs: 0, timeoutMs: 60_000, work }),
      defineJob({ name: 'b', lock: 'shared', leaseMs: 30_000, work }),
    ];
    const { functions } = deploymentOf({ service: 'cronce', stage: 'test', environment: {}, jobs });
    expect(functions['a']?.timeout).toBe(100);
  });

  it('refuses a lock delay that is shorter than the deployment’s lease', () => {
    const job = defineJob({ name: 'a', lockDelayMs: 14_999, work });
    expect(() => deployed(job)).toThrow(
      new DeploymentError(
        'job "a": lockDelayMs is 14999; allowed: 0, or at least the lease, which is 15000 in this deployment',
      ),
    );
    expect(() => deployed(job, { CRONCE_LEASE_MS: '14999' })).not.toThrow();
  });

  it('refuses a schedule that is over', () => {
    const over = (schedule: JobOptions['schedule'] & {}, enabled = true) =>
      deploymentOf({
        service: 'cronce',
        stage: 'test',
        environment: {},
        jobs: [defineJob({ name: 'a', schedule, enabled, work })],
        now: new Date('2028-01-01T00:00:00Z'),
      });
    const past =
      'job "a": its schedule cron(0 3 1 1 ? 2027) is over, and will never fall due again; remove it';
    expect(() => over('cron(0 3 1 1 ? 2027)')).toThrow(new DeploymentError(past));
    expect(() => over(['rate(1 day)', { at: 'rate(1 hour)', end: '2027-12-31T00:00:00Z' }])).toThrow(
      /is over/,
    );
    expect(() => over({ at: 'rate(1 hour)', end: '2028-01-01T00:00:01Z' })).not.toThrow();
    expect(() => over({ at: 'cron(0 3 1 1 ? 2027)', enabled: false })).not.toThrow();
    expect(() => over('cron(0 3 1 1 ? 2027)', false)).not.toThrow();
  });

  describe('H4: names', () => {
    const named = (stage: string, job: string, service = 'cronce') => {
      const jobs = [defineJob({ name: job, work })];
      return () => deploymentOf({ service, stage, environment: {}, jobs });
    };

    it('of functions may have 64 characters and no more', () => {
      const stage = 's'.repeat(64 - 'cronce--expire-sessions'.length);
      expect(named(stage, 'expire-sessions')).not.toThrow();
      const name = `cronce-${stage}s-expire-sessions`;
      expect(named(`${stage}s`, 'expire-sessions')).toThrow(
        new DeploymentError(
          `AWS would refuse the name of the Lambda function "${name}": it has 65 characters, 1 more than 64. ` +
            `Names are made of service "cronce" (6) and stage "${stage}s" (42) and the job’s; choose others`,
        ),
      );
      expect(named('s'.repeat(50), 'a'.repeat(40))).toThrow(/it has 98 characters, 34 more than 64/);
    });

    it('say all that is too long: also those of functions, queue and stack that no job has', () => {
      expect(named('s'.repeat(60), 'a')).toThrow(
        /-http": it has 72 characters, 8 more.*-a": it has 69.*5 more/,
      );
      expect(named('s'.repeat(63), 'a')).toThrow(
        /SQS queue .*-dead-letters": it has 83 characters, 3 more than 80/,
      );
      expect(named('s'.repeat(130), 'a')).toThrow(
        /CloudFormation stack .* it has 137 characters, 9 more than 128/,
      );
    });

    it.each([
      [
        'prod_1',
        'cronce',
        /the name of the CloudFormation stack "cronce-prod_1": allowed are letters, digits and hyphens/,
      ],
      ['prod', '1cronce', /CloudFormation stack "1cronce-prod": allowed are .* a letter first/],
      [
        'pröd',
        'cronce',
        /Lambda function "cronce-pröd-a": allowed are letters, digits, hyphens and underscores/,
      ],
      ['a b', 'cronce', /Lambda function "cronce-a b-a"/],
      ['a.b', 'cronce', /Lambda function "cronce-a.b-a"/],
      ['', '', /CloudFormation stack "-"/],
    ])('have AWS’s letters: stage %j of service %j', (stage, service, message) => {
      expect(named(stage, 'a', service)).toThrow(DeploymentError);
      expect(named(stage, 'a', service)).toThrow(message);
    });
  });

  it('tells each function how its job’s is named, and where it is invoked', () => {
    const { functions } = deployed(defineJob({ name: 'a', work }), {
      CRONCE_LAMBDA_ENDPOINT: 'http://localhost:3002',
    });
    for (const name of ['http', 'a'])
      expect(functions[name]?.environment).toMatchObject({
        CRONCE_LAMBDA_ENDPOINT: 'http://localhost:3002',
        CRONCE_FUNCTION_PREFIX: 'cronce-test-',
      });
  });

  it('keeps the tokens from all functions but the HTTP one', () => {
    const { functions } = deployed(defineJob({ name: 'a', work }), {
      CRONCE_RUN_TOKENS: 'a-token-of-some-length',
    });
    expect(functions['http']?.environment).toHaveProperty('CRONCE_RUN_TOKENS');
    expect(functions['a']?.environment).not.toHaveProperty('CRONCE_RUN_TOKENS');
  });

  it('refuses a job named like a function of its own, and a setting that is none', () => {
    expect(() => deployed(declareJob({ name: 'http', work }))).toThrow(DeploymentError);
    expect(() => deployed(defineJob({ name: 'a', work }), { CRONCE_LESE_MS: '5000' })).toThrow(SettingsError);
  });

  it('I2: leaves jobs out, and refuses to leave out what is none', () => {
    const jobs = ['a', 'b'].map((name) => defineJob({ name, schedule: 'rate(1 hour)', work }));
    const without = (names: string) =>
      deploymentOf({ service: 's', stage: 't', environment: { CRONCE_WITHOUT_JOBS: names }, jobs });
    expect(Object.keys(without(' b ,').functions)).toEqual(['http', 'a']);
    expect(JSON.stringify(without('b').resources)).not.toContain('BSchedule');
    expect(() => without('c')).toThrow('CRONCE_WITHOUT_JOBS names "c", which is no job; known: a, b');
  });
});

function only<T>(found: readonly T[]): T {
  expect(found).toHaveLength(1);
  return found[0] as T;
}
