# Starts PostgreSQL in a container; makes its cluster the first time.
set -eu
bin=$(echo /usr/lib/postgresql/*/bin)
data=/var/lib/postgresql/data
if [ ! -f "$data/PG_VERSION" ]; then
  "$bin/initdb" -D "$data" -U solera -E UTF8 -A scram-sha-256 --pwfile=/run/secrets/database_password
  echo "host all solera all scram-sha-256" >> "$data/pg_hba.conf"
  echo "CREATE DATABASE solera" | "$bin/postgres" --single -D "$data" postgres > /dev/null
fi
exec "$bin/postgres" -D "$data" -c listen_addresses='*' -k /tmp
