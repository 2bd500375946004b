-- The schema of the jobs that come along as examples (src/jobs). Yours replaces it.

CREATE SCHEMA app;

CREATE TABLE app.session (
  id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  user_name  text NOT NULL,
  expires_at timestamptz NOT NULL
);
CREATE INDEX session_by_expiry ON app.session (expires_at);

CREATE TABLE app.page_view (
  at      timestamptz NOT NULL,
  path    text NOT NULL,
  visitor text NOT NULL
);
CREATE INDEX page_view_by_time ON app.page_view (at);

CREATE TABLE app.daily_statistics (
  day      date PRIMARY KEY,
  views    bigint NOT NULL,
  visitors bigint NOT NULL
);

CREATE TABLE app.notification (
  id         uuid PRIMARY KEY DEFAULT gen_random_uuid(), -- names the mail's key, so it must be unique everywhere
  recipient  text NOT NULL,
  body       text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  sent_at    timestamptz
);
CREATE INDEX notification_pending ON app.notification (created_at) WHERE sent_at IS NULL;

-- Something to work on.
INSERT INTO app.session (user_name, expires_at)
  SELECT 'user ' || n % 97, clock_timestamp() + make_interval(secs => n * 20) FROM generate_series(-200, 1000) n;
INSERT INTO app.page_view (at, path, visitor)
  SELECT clock_timestamp() - make_interval(mins => n), '/page/' || n % 12, 'visitor ' || n % 311
  FROM generate_series(1, 5000) n;
INSERT INTO app.notification (recipient, body)
  SELECT 'user' || n || '@example.com', 'Your weekly summary is ready.' FROM generate_series(1, 40) n;
