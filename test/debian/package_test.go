// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// newer is the version of the package that TestPackage upgrades to.
const newer = "0.1.1"

// TestPackage installs the package without a network, and follows a machine through all that happens to a service.
func TestPackage(t *testing.T) {
	tier.Full(t, "it makes a release and boots a Debian; the gate tests drover up, hack/release and the units by themselves")
	first := framework.FindFile(t, framework.BuildRelease(t), "*.deb")
	s := newSystem(t, first, withVersion(t, first, newer))
	before := s.listFiles(t)
	s.start(t)

	begin := time.Now()
	version := strings.Split(filepath.Base(first), "_")[1]
	s.run(t, "apt-get", "-qq", "update")
	s.run(t, "apt-get", "-qq", "--yes", "--no-install-recommends", "install", "drover="+version)
	installed := time.Since(begin)
	out := s.run(t, "drover", "vm", "run", "--rm", "--image", "drover://built-in", "--memory", "256Mi", "--", "echo", "from", "a", "machine")
	assert.Contains(t, "the machine's output", out, "from a machine\n")
	t.Logf("installed after %.1f s, a machine's output after %.1f s", installed.Seconds(), time.Since(begin).Seconds())

	checkLogin(t, s)
	s.run(t, "drover", "vm", "create", "web", "--memory", "256Mi", "--wait")
	machine := s.processes(t, "qemu-system")
	checkScores(t, s)
	s.run(t, "systemctl", "restart", "drover")
	s.checkMachine(t, "after a restart", machine)
	killed := strings.TrimSpace(s.run(t, "systemctl", "show", "--property=MainPID", "--value", "drover"))
	s.run(t, "kill", "-KILL", killed)
	assert.Eventually(t, "systemd starts Drover again", func(testing.TB) error {
		out, err := s.tryCommand(t, "systemctl", "show", "--property=ActiveState,MainPID", "--value", "drover")
		found := strings.Fields(out)
		return assert.ErrorUnless(err == nil && slices.Contains(found, "active") && !slices.Contains(found, killed), "it is %q, %v", out, err)
	})
	s.checkMachine(t, "after kill -9", machine)
	s.run(t, "apt-get", "-qq", "--yes", "install", "drover="+newer)
	s.checkMachine(t, "after an upgrade", machine)
	s.run(t, "apt-get", "-qq", "--yes", "--allow-downgrades", "install", "drover="+version)
	s.checkMachine(t, "after a downgrade", machine)

	s.powerOff(t)
	s.start(t)
	s.run(t, "drover", "kubectl", "wait", "vm/web", "--for=condition=Ready", "--timeout=2m")
	assert.Contains(t, "the shutdown of machines", s.run(t, "journalctl", "--boot", "-1", "--unit", "drover-machines", "--output", "cat"), "default/web: powered off")

	assert.Contains(t, "the removal", s.run(t, "apt-get", "-qq", "--yes", "remove", "drover"), "default/web: powered off")
	assert.Equal(t, "machines after the removal", s.processes(t, "qemu-system"), "")
	s.run(t, "apt-get", "-qq", "--yes", "--no-install-recommends", "install", "drover="+version)
	s.run(t, "drover", "kubectl", "wait", "vm/web", "--for=condition=Ready", "--timeout=2m")
	s.run(t, "apt-get", "-qq", "--yes", "--autoremove", "purge", "drover")
	s.powerOff(t)
	assert.Equal(t, "files that the package left", strings.Join(s.left(t, before), "\n"), "")
}

// withVersion returns a copy of a package with another version.
func withVersion(t *testing.T, path, version string) string {
	t.Helper()
	dir := t.TempDir()
	unpacked, out := filepath.Join(dir, "unpacked"), filepath.Join(dir, "drover_"+version+"_amd64.deb")
	framework.MustRunCommand(t, framework.BuildTimeout, nil, "dpkg-deb", "--raw-extract", path, unpacked)
	control := filepath.Join(unpacked, "DEBIAN", "control")
	var lines []string
	for line := range strings.Lines(framework.ReadFile(t, control)) {
		if strings.HasPrefix(line, "Version: ") {
			line = "Version: " + version + "\n"
		}
		lines = append(lines, line)
	}
	assert.NoError(t, os.WriteFile(control, []byte(strings.Join(lines, "")), 0o600))
	framework.MustRunCommand(t, framework.BuildTimeout, nil, "dpkg-deb", "--root-owner-group", "-Znone", "--build", unpacked, out)
	return out
}

// processes returns the process IDs of a program in the Debian.
func (s *system) processes(t *testing.T, program string) string {
	t.Helper()
	out, _ := s.tryCommand(t, "pgrep", "--full", "--", program+".*-name drover-") // pgrep fails without a match
	return strings.TrimSpace(out)
}

// checkMachine checks that the same QEMU runs and that its VM is ready.
func (s *system) checkMachine(t *testing.T, when, machine string) {
	t.Helper()
	s.run(t, "drover", "kubectl", "wait", "vm/web", "--for=condition=Ready", "--timeout=2m")
	assert.Equal(t, "QEMU "+when, s.processes(t, "qemu-system"), machine)
}

// checkLogin checks that a member of group drover uses the service without sudo, until it leaves the group.
func checkLogin(t *testing.T, s *system) {
	t.Helper()
	s.run(t, "useradd", "--system", "--groups", "drover", "ann")
	ann := []string{"runuser", "--user", "ann", "--", "env", "HOME=/nonexistent", "drover"}
	out := s.run(t, append(ann, "vm", "run", "--rm", "--image", "drover://built-in", "--memory", "256Mi", "--", "echo", "from", "ann")...)
	assert.Contains(t, "the output of ann's machine", out, "from ann\n")
	begin := time.Now()
	s.run(t, append(ann, "vm", "list")...)
	t.Logf("drover vm list took %.3f s", time.Since(begin).Seconds())
	s.run(t, "gpasswd", "--delete", "ann", "drover")
	assert.Eventually(t, "ann is refused", func(testing.TB) error {
		out, err := s.tryCommand(t, append(ann, "vm", "list")...)
		return assert.ErrorUnless(err != nil && strings.Contains(out, "only members of group drover"), "%v: %s", err, out)
	})
	s.run(t, "userdel", "ann")
}

// checkScores checks that the kernel ends a machine before its supervisor when memory runs out.
func checkScores(t *testing.T, s *system) {
	t.Helper()
	for program, want := range map[string]string{"qemu-system.*-name drover-": "300", "drover-machine follow": "100"} {
		pid := s.run(t, "pgrep", "--newest", "--full", "--", program) // a shell around it would match too
		out := s.run(t, "cat", "/proc/"+strings.TrimSpace(pid)+"/oom_score_adj")
		assert.Equal(t, "oom_score_adj of "+program, strings.TrimSpace(out), want)
	}
}

// left returns the files that are in the Debian now and were not before, sorted.
func (s *system) left(t *testing.T, before map[string]bool) []string {
	t.Helper()
	left := []string{}
	for _, path := range slices.Sorted(maps.Keys(s.listFiles(t))) {
		if !before[path] {
			left = append(left, path)
		}
	}
	return left
}
