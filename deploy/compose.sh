# A coordinator, PostgreSQL and two agents in containers, with keys and passwords made here.
# COMPOSE is podman-compose or "docker compose", ENGINE podman or docker; BASE a Debian to build on,
# BUILT=1 says that the images solera and solera-postgresql are there already.
set -eu
cd "$(dirname "$0")"
COMPOSE=${COMPOSE:-podman-compose} ENGINE=${ENGINE:-podman}
umask 077
mkdir -p compose/secrets compose/rows
touch compose/secrets/north compose/secrets/south
[ -n "${BUILT:-}" ] || $COMPOSE -f compose.yaml build
if [ ! -f compose/tls/ca.pem ]; then
  password=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
  printf %s "$password" > compose/secrets/database_password
  printf %s "postgresql+psycopg://solera:$password@database/solera" > compose/secrets/database
  $ENGINE run --rm --network none --user 0 -v "$PWD/compose:/make:Z" solera \
    tls init --host coordinator --folder /make/tls
fi
# Files that containers read are for other users than ours; the folder above keeps others out.
chmod 644 compose/secrets/* compose/tls/coordinator.key
for name in north south; do
  [ -f compose/rows/$name.csv ] ||
    awk -v s=$name 'BEGIN { srand(length(s) + (s == "north")); print "age,bmi,ill";
      for (i = 0; i < 200; i++) { a = 30 + int(50 * rand()); b = 18 + 20 * rand();
        printf "%d,%.1f,%d\n", a, b, (a + b > 75 + 10 * rand()) } }' > compose/rows/$name.csv
done
chmod 644 compose/rows/*
$COMPOSE -f compose.yaml up -d database coordinator
inside() { $COMPOSE -f compose.yaml exec -T coordinator sh -c "$1"; }
token='SOLERA_TOKEN=$(cat /var/lib/solera/coordinator/driver.token) SOLERA_URL=https://coordinator:8443'
# podman-compose has words of its own to say, and ends well when a command inside did not: what counts
# is the invitation itself, which the coordinator gives once it is up.
for name in north south; do
  until [ -s compose/secrets/$name ]; do
    inside "$token SOLERA_CA=/etc/solera/ca.pem solera invite $name --federation cardio" \
      2> /dev/null | grep '^cardio/' > compose/secrets/$name || sleep 1
  done
done
$COMPOSE -f compose.yaml up -d
until inside "$token SOLERA_CA=/etc/solera/ca.pem solera clients --federation cardio" 2> /dev/null | grep south > /dev/null; do sleep 1; done
inside "$token SOLERA_CA=/etc/solera/ca.pem solera clients --federation cardio"
