/** Requests as each front of Lambda's tells of them: API Gateway's two kinds, function URLs, load balancers. */

export type Query = readonly (readonly [name: string, value: string])[];
export interface Sent {
  readonly method?: string;
  readonly path: string;
  readonly query?: Query;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | null;
  readonly base64?: boolean;
}

const encoded = (query: Query) => query.map((pair) => pair.map(encodeURIComponent).join('=')).join('&');
const listsOf = (pairs: Query) => {
  const lists = Object.create(null) as Record<string, string[]>; // a name may be __proto__
  for (const [name, value] of pairs) (lists[name] ??= []).push(value);
  return lists;
};

/** API Gateway's payload 2.0, as its documentation and its own events have it. */
export const v2 =
  (stage: string, domainName = 'abc123.execute-api.eu-central-1.amazonaws.com') =>
  ({ method = 'GET', path, query = [], headers, body = null, base64 = false }: Sent) => ({
    version: '2.0',
    routeKey: '$default',
    rawPath: stage === '$default' ? path : `/${stage}${path}`,
    rawQueryString: encoded(query),
    headers: { host: domainName, 'x-forwarded-proto': 'https', ...headers },
    ...(query.length > 0 ? { queryStringParameters: Object.fromEntries(query) } : {}),
    requestContext: {
      accountId: '123456789012',
      apiId: 'abc123',
      domainName,
      stage,
      http: { method, path, protocol: 'HTTP/1.1', sourceIp: '203.0.113.9', userAgent: 'curl' },
    },
    body,
    isBase64Encoded: base64,
  });

/** A REST API's, 1.0: what is decoded is told in lists too, and the stage is beside the path. */
export const v1 =
  (stage: string) =>
  ({ method = 'GET', path, query = [], headers = {}, body = null, base64 = false }: Sent) => {
    const all = {
      Host: 'abc123.execute-api.eu-central-1.amazonaws.com',
      ...headers,
    };
    return {
      resource: '/{proxy+}',
      path,
      httpMethod: method,
      headers: all,
      multiValueHeaders: listsOf(Object.entries(all)),
      queryStringParameters: query.length > 0 ? Object.fromEntries(query) : null,
      multiValueQueryStringParameters: query.length > 0 ? listsOf(query) : null,
      pathParameters: path === '/' ? null : { proxy: path.slice(1) },
      stageVariables: null,
      requestContext: {
        stage,
        path: `/${stage}${path}`,
        httpMethod: method,
        identity: { sourceIp: '203.0.113.9' },
      },
      body,
      isBase64Encoded: base64,
    };
  };

/** A load balancer's, with single headers or with lists: names and values of the query are as they were sent. */
export const alb =
  (isMulti: boolean) =>
  ({ method = 'GET', path, query = [], headers = {}, body = '', base64 = false }: Sent) => {
    const all = {
      host: 'jobs.example',
      'x-forwarded-for': '198.51.100.1, 203.0.113.9',
      'x-forwarded-proto': 'https',
      ...headers,
    };
    const raw = query.map((pair) => pair.map(encodeURIComponent)) as unknown as Query;
    return {
      requestContext: {
        elb: { targetGroupArn: 'arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/x/y' },
      },
      httpMethod: method,
      path,
      ...(isMulti
        ? { multiValueHeaders: listsOf(Object.entries(all)), multiValueQueryStringParameters: listsOf(raw) }
        : { headers: all, queryStringParameters: Object.fromEntries(raw) }),
      body,
      isBase64Encoded: base64,
    };
  };
