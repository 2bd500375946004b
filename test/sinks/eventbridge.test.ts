import { eventBridgeSink } from '../../src/sinks/eventbridge.ts';
import type { RunRecord } from '../../src/run.ts';
import { reply, startAwsEndpoint } from '../support/aws.ts';
import { keepsToTheContract, type Behaviour } from './contract.ts';

interface PutEvents {
  readonly Entries: readonly { readonly Detail: string }[];
}

keepsToTheContract('EventBridge', async () => {
  Object.assign(process.env, {
    AWS_ACCESS_KEY_ID: 'local',
    AWS_SECRET_ACCESS_KEY: 'local',
    AWS_REGION: 'eu-central-1',
  });
  await import('@aws-sdk/client-eventbridge'); // which takes a second, once
  const arrived: string[] = [];
  let behave: Behaviour = () => 'take';
  const bus = await startAwsEndpoint(({ body }, response) => {
    const ids = (body as PutEvents).Entries.map(({ Detail }) => (JSON.parse(Detail) as RunRecord).id);
    const hows = ids.map(behave);
    if (hows.includes('hang')) return;
    if (hows.includes('hang up')) {
      response.destroy();
      return;
    }
    arrived.push(...ids.filter((_, index) => hows[index] === 'take'));
    reply(response, 200, {
      FailedEntryCount: hows.filter((how) => how === 'refuse').length,
      Entries: hows.map((how, index) =>
        how === 'take' ? { EventId: `e${index}` } : { ErrorCode: 'InternalFailure', ErrorMessage: 'not now' },
      ),
    });
  });
  return {
    sink: (wanted = {}) => eventBridgeSink({ bus: 'outcomes', endpoint: bus.url, ...wanted }),
    arrived,
    behave: (behaviour) => (behave = behaviour),
    stop: async () => bus.stop(),
  };
});
