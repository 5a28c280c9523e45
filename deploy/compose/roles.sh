#!/bin/sh
# Makes, in a new server: the database, its owner, the role of the service, which may not change the schema, and Keycloak's.
# What it may do with the tables, `attestation-service db upgrade --grant-to` says. The image of PostgreSQL runs this once. Passwords come from files, and nowhere else.
set -eu
export SECRETS="${SECRETS:-/run/secrets}"

psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'SQL'
\set owner `cat "$SECRETS/db-owner"`
\set service `cat "$SECRETS/db-service"`
\set keycloak `cat "$SECRETS/db-keycloak"`
CREATE ROLE itl_owner LOGIN PASSWORD :'owner';
CREATE ROLE itl_service LOGIN PASSWORD :'service';
CREATE ROLE keycloak LOGIN PASSWORD :'keycloak';
CREATE DATABASE attestation OWNER itl_owner ENCODING UTF8 TEMPLATE template0;
CREATE DATABASE keycloak OWNER keycloak ENCODING UTF8 TEMPLATE template0;
REVOKE CONNECT ON DATABASE attestation, keycloak FROM PUBLIC;
GRANT CONNECT ON DATABASE attestation TO itl_service;
\connect attestation
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO itl_owner;
GRANT USAGE ON SCHEMA public TO itl_service;
SQL
