// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// hostile is a root container that does to its MPS server what it can: it asks the daemon to quit, as NVIDIA's own
// instructions have it, takes the sockets away, fills the directory, and writes what the log pipe takes. It then says
// what it saw, and stays.
const hostile = `cd /tmp/nvidia-mps || exit 9
echo quit | /usr/bin/nvidia-cuda-mps-control
echo shutdown_server -f | /usr/bin/nvidia-cuda-mps-control
rm -f control control_privileged control_lock log nvidia-cuda-mps-control.pid 2>/dev/null
mv control elsewhere 2>/dev/null
echo x > filler 2>/dev/null
head -c 40000000 /dev/zero > log 2>/dev/null &
writer=$!
sleep 2
kill $writer 2>/dev/null
mount -o remount,rw /tmp/nvidia-mps 2>/dev/null && echo "can mount"
echo "host [$(ls -d /run/cleave $SUPERVISOR 2>/dev/null)]"
while read -r _ _ _ root point _; do
  case "$point" in /usr/bin/*|/var/run/kubernetes.io/*) continue ;; esac
  case "$root $point" in *mps*) echo "mount $root on $point" ;; esac
done </proc/self/mountinfo
echo "sees $(echo *)"
exec sleep infinity`

// One tenant of an MPS server runs as root and means harm. The other's program does not notice, new clients come in,
// and the host's /run holds no more than the file systems of that GPU are given.
func TestMPS_TenantsIsolated(t *testing.T) {
	ctx, s := newSpace(t)
	victim := s.pods.run(ctx, mpsPod("victim", shareSpec(mpsClass)))
	before, daemon := s.pods.served(ctx, victim), s.hardware.daemon()
	s.pods.served(ctx, s.pods.run(ctx, mpsPod("neighbour", shareSpec(mpsClass, "memory=75Gi")))) // by the server of another GPU
	objects := claimPod("hostile", shareSpec(mpsClass))
	pod := podOf(objects)
	pod.Spec.Containers[0].Command = []string{"/bin/sh", "-c", hostile}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "SUPERVISOR", Value: env.node.Supervisor.Dir()}}
	s.create(ctx, objects...)
	s.pods.running(ctx, "hostile")
	var log string
	s.must(workload.Until(ctx, "the hostile container to have tried all", func(ctx context.Context) (bool, string, error) {
		var err error
		if log, err = env.client.Cluster.PodLogs(ctx, s.name, "hostile", "main"); err != nil {
			return false, err.Error(), nil //nolint:nilerr // it may not have a log yet
		}
		return strings.Contains(log, "sees "), log, nil
	}))
	if !strings.Contains(log, "host []\n") || strings.Contains(log, "can mount") {
		t.Errorf("the container gets at directories of the host, or at its own mounts:\n%s", log)
	}
	for _, command := range []string{"quit", "shutdown_server"} {
		if !strings.Contains(log, command+": permission denied\n") {
			t.Errorf("the daemon was not asked, or does not refuse, to %s:\n%s", command, log)
		}
	}
	if got := strings.Count(log, "mount "); got != 1 || !strings.Contains(log, "mount /clients on /tmp/nvidia-mps\n") {
		t.Errorf("the container has %d mounts of servers, want the one for clients:\n%s", got, log)
	}
	if !strings.Contains(log, "sees control log\n") {
		t.Errorf("the container sees more than a client needs, or less:\n%s", log)
	}
	s.pods.checkUndisturbed(ctx, victim)
	s.hardware.checkDaemon(daemon)
	s.hardware.checkLogs(daemon)
	if got := s.pods.served(ctx, s.pods.run(ctx, mpsPod("next", shareSpec(mpsClass)))); got.Server != before.Server {
		t.Errorf("a new client has server %d, the first %d", got.Server, before.Server)
	}
	for _, name := range []string{"hostile", "neighbour", "next", "victim"} {
		s.pods.delete(ctx, name)
	}
	s.hardware.waitNoMPS(ctx)
}
