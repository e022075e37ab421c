// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// processStatus returns the lines of a machine's /proc/PID/status by their names.
func processStatus(t *testing.T, d *Driver, spec driver.ServerSpec) map[string]string {
	t.Helper()
	text := framework.ReadFile(t, proc.Path(d.Host.InstanceOf(spec.UID).Machine.PID(), "status"))
	status := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		status[name] = strings.Join(strings.Fields(value), " ")
	}
	return status
}

func wantConfinement(t *testing.T, s driver.Server, reason string) {
	t.Helper()
	assert.True(t, s.Confinement != nil && s.Confinement.Reason == reason, "the confinement is %+v, want %s", s.Confinement, reason)
}

// TestMachineUsers checks that each machine has a separate user ID, no groups of this
// program, and no capabilities.
func TestMachineUsers(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "start machines as other users")
	e, d := newDriver(t)
	seen := map[string]bool{}
	for range 3 {
		spec := e.spec()
		wantConfinement(t, reach(t, d, spec, driver.StateRunning), driver.ReasonConfined)
		status := processStatus(t, d, spec)
		id, _, _ := strings.Cut(status["Uid"], " ")
		assert.True(t, status["Uid"] == strings.Join([]string{id, id, id, id}, " ") && len(id) == 10 && strings.HasPrefix(id, "21000") && !seen[id],
			"its user IDs are %s, beside those of %v", status["Uid"], seen)
		seen[id] = true
		for name, want := range map[string]string{
			"Groups": "", "CapInh": noCapabilities, "CapPrm": noCapabilities, "CapEff": noCapabilities, "CapBnd": noCapabilities, "CapAmb": noCapabilities,
			"NoNewPrivs": "1", "Seccomp": "2",
		} {
			assert.Equal(t, name, status[name], want)
		}
		defer gone(t, d, spec)
	}
}

const noCapabilities = "0000000000000000"

// TestOneUser checks that without a range all machines run as one user, and that a Drover with
// a range reports them as StartedBefore.
func TestOneUser(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "start machines as other users")
	e := newEngine(t)
	o := e.options()
	o.UserIDs = ""
	d := openWith(t, o)
	spec := e.spec()
	wantConfinement(t, reach(t, d, spec, driver.StateRunning), driver.ReasonConfined)
	id, _, _ := strings.Cut(processStatus(t, d, spec)["Uid"], " ")
	assert.True(t, id != "0" && len(id) <= 5, "its user ID is %s", id)
	// A Drover with a range would start it otherwise.
	s, err := e.open(t).Ensure(t.Context(), spec)
	assert.NoError(t, err)
	wantConfinement(t, s, driver.ReasonStartedBefore)
}

// TestUserMissing checks that without the user no machine is started, by a clear error, and
// that those which run are reached as ever.
func TestUserMissing(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "start machines as other users")
	e := newEngine(t)
	before := e.spec()
	reach(t, e.open(t), before, driver.StateRunning)
	o := e.options()
	o.User = "drover-missing"
	var lines []string
	o.Log = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	d := openWith(t, o)
	assert.Contains(t, "the log has", strings.Join(lines, "\n"), "Machines cannot be started")
	spec := e.spec()
	refuses(t, d, spec, driver.ErrRetry, "user drover-missing", "useradd --system", driver.ReasonMachineUserUnavailable)
	assert.True(t, d.Host.InstanceOf(spec.UID).Machine.PID() == 0, "a machine runs")
	s := reach(t, d, before, driver.StateRunning)
	wantConfinement(t, s, driver.ReasonConfined)
}

// TestUserIDsUsedUp checks that a machine waits while all user IDs are in use.
func TestUserIDsUsedUp(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "start machines as other users")
	e := newEngine(t)
	o := e.options()
	o.UserIDs = "2100070000-2100070000"
	d := openWith(t, o)
	first, second := e.spec(), e.spec()
	reach(t, d, first, driver.StateRunning)
	refuses(t, d, second, driver.ErrExhausted, "2100070000", "--qemu-uid-range")
	gone(t, d, first)
	reach(t, d, second, driver.StateRunning)
}

// TestStartedBefore checks that machines without a record of how they were started are
// adopted as they are, and that a restart confines them.
func TestStartedBefore(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for name, change := range map[string]func(t *testing.T, path string){
		"without a file": func(t *testing.T, path string) {
			t.Helper()
			assert.NoError(t, os.Remove(path))
		},
		"with the file of another process": func(t *testing.T, path string) {
			t.Helper()
			framework.EditJSON(t, path, func(started *map[string]any) { (*started)["startTicks"] = 1 })
		},
		"with a file that cannot be read": func(t *testing.T, path string) {
			t.Helper()
			assert.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := e.open(t)
			spec := e.spec()
			s := reach(t, d, spec, driver.StateRunning)
			wantConfinement(t, s, driver.ReasonConfined)
			change(t, d.Host.InstanceOf(spec.UID).Machine.File(machine.StartedFile))
			next := e.open(t)
			adopted := reach(t, next, spec, driver.StateRunning)
			assert.True(t, adopted.Run == s.Run, "it is another run")
			wantConfinement(t, adopted, driver.ReasonStartedBefore)
			restart(t, next, spec, "drover guest 2 A")
			wantConfinement(t, reach(t, next, spec, driver.StateRunning), driver.ReasonConfined)
		})
	}
}

// TestLowPort checks that a machine can have a host port that takes a privilege, and is not privileged itself.
func TestLowPort(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "start machines as other users")
	e, d := newDriver(t)
	spec := e.spec()
	spec.Ports = []driver.Port{{Name: "web", Protocol: "TCP", Port: 80, HostPort: freeLowPort(t)}}
	s := reach(t, d, spec, driver.StateRunning)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", s.Ports[0].HostPort))
	assert.NoError(t, err)
	assert.NoError(t, conn.Close())
	assert.Equal(t, "its capabilities", processStatus(t, d, spec)["CapEff"], "0000000000000000")
}

func freeLowPort(t *testing.T) int32 {
	t.Helper()
	for port := int32(1023); port > 512; port-- {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", fmt.Sprintf(":%d", port))
		if err == nil {
			assert.NoError(t, listener.Close())
			return port
		}
	}
	t.Fatal("no port below 1024 is free")
	return 0
}

// TestBadUsers checks what the options refuse.
func TestBadUsers(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for _, ids := range []string{"0-10", "10-9", "x", "1-", "1-4294967295", "1-2-3", "-1-2"} {
		o := e.options()
		o.User, o.UserIDs = launch.DefaultUser, ids
		assert.ErrorSays(t, ids, assert.ErrorOf(New(o)), "--qemu-uid-range: the user IDs of machines are \""+ids)
	}
	for name, want := range map[string]bool{"": os.Geteuid() != 0, launch.DefaultUser: true, "root": os.Geteuid() == 0} {
		o := DefaultOptions()
		o.Dir, o.User, o.MachineProgram = filepath.Join(framework.ShortTempDir(t), "qemu"), name, machineProgram
		_, err := o.Open(driver.Environment{ClusterID: "cluster-1"})
		assert.True(t, (err == nil) == want, "--qemu-user %q: got %v", name, err)
	}
	users, err := launch.NewUsers("root", "")
	assert.NoError(t, err)
	assert.ErrorSays(t, "root", users.Check(), "has the ID or group of root")
}

// isRunAgain reports whether this is the test's run in another process, below a program that
// takes something from it. If it is not, isRunAgain runs that, and requires that it passes.
func isRunAgain(t *testing.T, below ...string) bool {
	t.Helper()
	const again = "DROVER_TEST_RUN_AGAIN"
	if os.Getenv(again) != "" {
		return true
	}
	args := append(slices.Clone(below[1:]), os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	cmd := exec.CommandContext(t.Context(), below[0], args...)
	cmd.Env = append(os.Environ(), again+"=1")
	out, err := cmd.CombinedOutput()
	assert.True(t, err == nil && strings.Contains(string(out), "--- PASS: "+t.Name()), "%v: %s", err, out)
	return false
}

// TestSetuidRefused checks root without the capability to become another user, as in some
// containers: no machine is started as root instead.
func TestSetuidRefused(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "start machines as other users")
	if !isRunAgain(t, "setpriv", "--bounding-set=-setuid") {
		return
	}
	e, d := newDriver(t)
	spec := e.spec()
	refuses(t, d, spec, driver.ErrRetry, "CAP_SETUID", driver.ReasonMachineUserUnavailable)
}

// TestFewDescriptors checks a Drover that can open no further file: no machine is lost, and
// starts go on once it can.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	if !isRunAgain(t, "prlimit", "--nofile=64") {
		return
	}
	e, d := newDriver(t)
	running, spec := e.spec(), e.spec()
	first := reach(t, d, running, driver.StateRunning)
	var taken []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		taken = append(taken, f)
	}
	closed := 0
	for ; closed < 30; closed++ { // wherever they run out
		if _, err := d.Ensure(t.Context(), spec); err == nil {
			break
		}
		assert.NoError(t, taken[closed].Close())
	}
	assert.True(t, closed != 0, "it started at once: descriptors did not run out")
	for _, f := range taken {
		_ = f.Close()
	}
	reach(t, d, spec, driver.StateRunning)
	assert.True(t, reach(t, d, running, driver.StateRunning).Run == first.Run, "the machine that ran was started again")
}

// TestExposures checks that a folder into which others can look is reported.
func TestExposures(t *testing.T) {
	t.Parallel()
	users, err := launch.NewUsers("", "")
	assert.NoError(t, err)
	dir := t.TempDir()
	for mode, want := range map[os.FileMode]bool{0o700: false, 0o755: true, 0o710: true} {
		assert.NoError(t, os.Chmod(dir, mode))
		found := users.FindExposures(dir)
		assert.True(t, slices.ContainsFunc(found, func(text string) bool { return strings.Contains(text, "look into "+dir) }) == want, "%#o: got %q", mode, found)
	}
}

// TestAsPlainUser runs some tests again with machines that run as the tests' own user.
func TestAsPlainUser(t *testing.T) {
	t.Parallel()
	contract := "TestContract/CreateTwice|StopForced|RestartOnce|KilledByHand|ListComplete|Secrets"
	if tier.IsFull() {
		contract = "TestContract"
	}
	framework.RunAsPlainUser(t, contract, "TestControllerKilledInStart", "TestInheritedDescriptors", "TestLogs", "TestReleasedAgain")
}

// TestGuestAsPlainUser runs the tests again that reach guests.
func TestGuestAsPlainUser(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it boots Linux three times and kills many controllers; TestAsPlainUser reaches machines by the same sockets")
	framework.RunWithGuestAsPlainUser(t, "TestLinux", "TestControllerKilled")
}
