/** A drawn request as an event of each front of Lambda's, or bent into what is none. */
import { alb, v1, v2, type Sent } from '../support/fronts.ts';
import type { Drawn } from './requests.ts';

export const fronts = ['HTTP API', 'stage', 'REST API', 'load balancer', 'lists', 'foreign'] as const;

/** Each from another address: wrong tokens of one would be slowed down. */
export function asEvent(front: (typeof fronts)[number], drawn: Drawn, token: string | null): unknown {
  const event = JSON.stringify(eventOf(front, drawn, token));
  return JSON.parse(event.replaceAll('203.0.113.9', `10.0.0.${(addresses += 1)}`));
}

let addresses = 0;

function eventOf(front: (typeof fronts)[number], drawn: Drawn, token: string | null): unknown {
  const sent = sentOf(drawn, token);
  switch (front) {
    case 'HTTP API':
      return { ...v2('$default')(sent), rawQueryString: drawn.query };
    case 'stage':
      return { ...v2('prod')(sent), rawQueryString: drawn.query };
    case 'REST API':
      return v1('prod')(sent);
    case 'load balancer':
      return alb(false)(sent);
    case 'lists':
      return alb(true)(sent);
    case 'foreign':
      return bent(sent, drawn);
  }
}

function sentOf({ method, path, query, headers, body }: Drawn, token: string | null): Sent {
  const authorization = token === null ? {} : { authorization: `Bearer ${token}` };
  // A text, where it is one; what is none comes as base64, as API Gateway has it.
  const text = Buffer.from(body).toString();
  const isText = Buffer.from(text).equals(body);
  return {
    method,
    path,
    query: [...new URLSearchParams(query)],
    headers: { ...Object.fromEntries(headers), ...authorization },
    body: isText ? text : Buffer.from(body).toString('base64'),
    base64: !isText,
  };
}

/** A member of it is missing, or of another type; by its content, so that it is bent alike each time. */
function bent(sent: Sent, { path, body }: Drawn): unknown {
  const whole: Record<string, unknown> = { ...v2('$default')(sent) };
  const keys = Object.keys(whole);
  const key = keys[(path.length + body.length) % keys.length] ?? '';
  const odd = [undefined, null, 5, [], {}, 'x', '\ud800', true];
  return { ...whole, [key]: odd[(path.length * 7 + body.length) % odd.length] };
}
