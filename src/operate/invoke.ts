import type { RunRequest } from '../path/trigger.ts';

export interface InvokeOptions {
  /** A job's function is named by this prefix and the job's name. */
  readonly functionPrefix: string;
  /** Another endpoint than AWS's own, for tests and local use. */
  readonly lambdaEndpoint: string | null;
}

/** For all attempts of one invocation together, ms. Lambda takes an event in some 50 ms. */
const timeLimitMs = 3_000;

/** Starts a run in its job's own function: Lambda takes the event, and runs it in its own time. */
export function invoker({
  functionPrefix,
  lambdaEndpoint,
}: InvokeOptions): (request: RunRequest) => Promise<void> {
  return async (request) => {
    // Loaded here and not before: whoever only reads never pays for it.
    const { InvokeCommand, LambdaClient } = await import('@aws-sdk/client-lambda');
    const client = new LambdaClient({
      maxAttempts: 2,
      ...(lambdaEndpoint === null ? {} : endpointConfig(lambdaEndpoint)),
    });
    const command = new InvokeCommand({
      FunctionName: functionPrefix + request.cronce.job,
      InvocationType: 'Event',
      Payload: JSON.stringify(request),
    });
    try {
      const { StatusCode } = await client.send(command, { abortSignal: AbortSignal.timeout(timeLimitMs) });
      if (StatusCode !== 202)
        throw new Error(`the event was answered by ${String(StatusCode)} and not by 202`);
    } finally {
      client.destroy();
    }
  };
}

/** An emulator on this machine checks no signature, so it gets none of a real account. */
function endpointConfig(endpoint: string) {
  const isLocal = /^(localhost|127\.0\.0\.1|\[::1\])$/.test(new URL(endpoint).hostname);
  const nobody = { region: 'us-east-1', credentials: { accessKeyId: 'local', secretAccessKey: 'local' } };
  return isLocal ? { endpoint, ...nobody } : { endpoint };
}
