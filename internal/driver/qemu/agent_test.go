// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/assert"
)

// beforeAgent returns a QEMU that gets the command line of an earlier version of Drover,
// without the device of the guest's agent.
func beforeAgent(t *testing.T) string {
	t.Helper()
	return script(t, `case $1 in -nodefaults) ;; *) exec qemu-system-x86_64 "$@";; esac
n=$#
while [ "$n" -gt 0 ]; do
	option=$1; shift; n=$((n - 1))
	case $option in
	-chardev | -device)
		value=$1; shift; n=$((n - 1))
		case $value in
		socket,id=agent,* | *virtio-serial-pci* | *virtserialport*) ;;
		*) set -- "$@" "$option" "$value" ;;
		esac ;;
	*) set -- "$@" "$option" ;;
	esac
done
exec qemu-system-x86_64 "$@"`)
}

// TestAgentShiftsNothing checks that a guest finds its devices, and its network interface among
// them, at the addresses at which it found them before machines had the agent's device. Until
// it is restarted, that machine is reported to need a restart.
func TestAgentShiftsNothing(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	o.Binary = beforeAgent(t)
	old := openWith(t, o)
	spec, port := e.linuxSpec(t)
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 8 << 20}, {Name: "more", SizeBytes: 8 << 20}}
	first := reach(t, old, spec, driver.StateRunning)
	before := report(t, port)

	d := e.open(t)
	_, err := d.Exec(t.Context(), spec.UID, driver.ExecRequest{Command: []string{"echo"}})
	wantError(t, err, driver.ErrRetry, "earlier version of Drover", "restart the VM")
	_, err = d.Interfaces(t.Context(), spec.UID)
	wantError(t, err, driver.ErrRetry, "restart the VM")
	if s := reach(t, d, spec, driver.StateRunning); s.Run != first.Run || len(s.Pending) != 0 {
		t.Errorf("it is %+v", s)
	}

	spec.RestartRun, spec.StopBy = first.Run, time.Now().Add(time.Hour)
	reach(t, d, spec, driver.StateRunning)
	after := report(t, port)
	const agent = "0000:00:1e.0"
	if !strings.HasPrefix(after.PCI[agent], "0x1af4 0x1003 ") || before.PCI[agent] != "" {
		t.Errorf("at %s there was %q, and is %q", agent, before.PCI[agent], after.PCI[agent])
	}
	delete(after.PCI, agent)
	if len(before.PCI) < 9 || !maps.Equal(before.PCI, after.PCI) {
		t.Errorf("before the guest had %v, and now %v", before.PCI, after.PCI)
	}
	if len(before.Network) != 1 || !maps.Equal(before.Network, after.Network) {
		t.Errorf("its network was %v, and is %v", before.Network, after.Network)
	}
	if !maps.Equal(before.Disks, after.Disks) {
		t.Errorf("its disks were %v, and are %v", before.Disks, after.Disks)
	}
	_, err = d.Interfaces(t.Context(), spec.UID)
	wantError(t, err, driver.ErrUnsupported, "qemu-guest-agent")
	gone(t, d, spec)
}

// agentGuest is a guest with an agent for tests: see hack/guest/linux/agent.go.
type agentGuest struct {
	t    *testing.T
	d    *Driver
	spec driver.ServerSpec
	port int32
}

func bootAgent(t *testing.T, e *engine, d *Driver) agentGuest {
	t.Helper()
	spec, port := e.linuxSpec(t)
	spec.CPUMilli = 2000 // megabytes through the agent in time, also on a loaded host
	reach(t, d, spec, driver.StateRunning)
	report(t, port)
	return agentGuest{t, d, spec, port}
}

// ask queries the guest's web server.
func (g agentGuest) ask(path string) string {
	g.t.Helper()
	request, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", g.port, path), nil)
	must(g.t, err)
	answer, err := http.DefaultClient.Do(request)
	must(g.t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	must(g.t, err)
	if answer.StatusCode != http.StatusOK {
		g.t.Fatalf("%s answers %s: %s", path, answer.Status, text)
	}
	return string(text)
}

// set gives the agent a mode.
func (g agentGuest) set(mode string) {
	g.t.Helper()
	g.ask("/agent?mode=" + mode)
}

// setHonest waits until the agent is reached again.
func (g agentGuest) setHonest() {
	g.t.Helper()
	g.set("honest")
	assert.Eventually(g.t, "the agent answers", func(testing.TB) error {
		_, err := g.d.Interfaces(g.t.Context(), g.spec.UID)
		return err
	})
}

// ran is what came of a command.
type ran struct {
	code        int
	out, errors string
	err         error
}

func (g agentGuest) run(stdin io.Reader, command ...string) ran {
	return g.runOn(g.t.Context(), g.d, stdin, command...)
}

func (g agentGuest) runOn(ctx context.Context, d *Driver, stdin io.Reader, command ...string) ran {
	var out, errOut bytes.Buffer
	code, err := d.Exec(ctx, g.spec.UID, driver.ExecRequest{Command: command, Stdin: stdin, Stdout: &out, Stderr: &errOut})
	return ran{code, out.String(), errOut.String(), err}
}

// checkInterfaces checks what the agent reports of the guest's network.
func (g agentGuest) checkInterfaces() {
	g.t.Helper()
	got, err := g.d.Interfaces(g.t.Context(), g.spec.UID)
	must(g.t, err)
	if len(got) != 1 || got[0].Name != "eth0" || got[0].MAC != launch.MACAddress(string(g.spec.UID)) ||
		!slices.Contains(got[0].Addresses, netip.MustParsePrefix("10.0.2.15/24")) {
		g.t.Errorf("they are %+v", got)
	}
}

// TestAgent checks commands in a guest, and what its agent reports of its network.
func TestAgent(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	g := bootAgent(t, e, d)
	wantError(t, g.run(nil, "echo").err, driver.ErrUnsupported, "install the package qemu-guest-agent")
	g.setHonest()
	g.checkInterfaces()
	large := strings.Repeat("0123456789abcde\n", 1<<17)
	for name, c := range map[string]struct {
		stdin   io.Reader
		command []string
		want    ran
	}{
		"output":       {nil, []string{"echo", "a b", `"$HOME"`, "漢"}, ran{out: "a b \"$HOME\" 漢\n"}},
		"error output": {nil, []string{"warn", "x"}, ran{errors: "x\n"}},
		"input":        {strings.NewReader("a\x00\xff\n"), []string{"cat"}, ran{out: "a\x00\xff\n"}},
		"large input":  {strings.NewReader(large), []string{"cat"}, ran{out: large}},
		"exit code":    {nil, []string{"exit", "7"}, ran{code: 7}},
		"signal":       {nil, []string{"die"}, ran{code: 137}},
	} {
		if got := g.run(c.stdin, c.command...); got != c.want {
			t.Errorf("%s: %d, %.40q, %.40q, %v", name, got.code, got.out, got.errors, got.err)
		}
	}
	for name, c := range map[string]struct {
		stdin   io.Reader
		command []string
		kind    error
		says    string
	}{
		"unknown":        {nil, []string{"no-such-program"}, driver.ErrCommandNotFound, "no-such-program"},
		"a folder":       {nil, []string{"/proc"}, driver.ErrCommandNotExecutable, "/proc"},
		"none":           {nil, nil, driver.ErrInvalid, "it is empty"},
		"no text":        {nil, []string{"echo", "\xff"}, driver.ErrInvalid, "command[1]"},
		"too much input": {strings.NewReader(large + "x"), []string{"cat"}, driver.ErrInvalid, "more than 2 MiB"},
	} {
		got := g.run(c.stdin, c.command...)
		wantError(t, got.err, c.kind, c.says)
		if got.out != "" {
			t.Errorf("%s: it printed %q", name, got.out)
		}
	}
	cut := g.run(nil, "print", "4")
	wantError(t, cut.err, driver.ErrUnsupported, "longer than 3 MiB", "use ssh", "the exit code is 0")
	if cut.out != strings.Repeat("x", 3<<20) {
		t.Errorf("%d bytes of the output came", len(cut.out))
	}
	_, err := d.Exec(t.Context(), g.spec.UID, driver.ExecRequest{Command: []string{"echo"}, TTY: true})
	wantError(t, err, driver.ErrUnsupported, "terminal", "ssh", "console")

	paused := g.spec
	paused.Power = driver.PowerPaused
	reach(t, d, paused, driver.StatePaused)
	wantError(t, g.run(nil, "echo").err, driver.ErrRetry, "is paused")
	reach(t, d, g.spec, driver.StateRunning)
	if got := g.run(nil, "echo", "on"); got.out != "on\n" {
		t.Errorf("resumed it is %+v", got)
	}
	off := g.spec
	off.Power = driver.PowerOff
	reach(t, d, off, driver.StateStopped)
	wantError(t, g.run(nil, "echo").err, driver.ErrRetry, "does not run")
	gone(t, d, g.spec)
	wantError(t, g.run(nil, "echo").err, driver.ErrNotFound)
}

// TestExecTogether checks commands of several callers in several processes, and that a command
// is ended whose caller leaves.
func TestExecTogether(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	g := bootAgent(t, e, d)
	g.setHonest()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- g.runOn(ctx, d, nil, "sleep").err }()
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			word := fmt.Sprint("caller ", i)
			if got := g.runOn(t.Context(), e.open(t), nil, "echo", word); got.out != word+"\n" {
				t.Errorf("%s: %+v", word, got)
			}
		})
	}
	all.Wait()
	assert.Eventually(t, "one command runs", func(testing.TB) error {
		if n := g.ask("/processes"); n != "1" {
			return fmt.Errorf("there are %s", n)
		}
		return nil
	})
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	assert.Eventually(t, "the command ends", func(testing.TB) error {
		if n := g.ask("/processes"); n != "0" {
			return fmt.Errorf("%s run", n)
		}
		return nil
	})
	// A caller that types is not waited for.
	ctx, leave = context.WithCancel(t.Context())
	typed, closeTyped := io.Pipe()
	defer func() { _ = closeTyped.Close() }()
	go func() { left <- g.runOn(ctx, d, typed, "cat").err }()
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	gone(t, d, g.spec)
}

// TestHostileAgents checks that no agent makes a call wait for longer than it says, and that an
// honest one is reached after each.
func TestHostileAgents(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	g := bootAgent(t, e, d)
	for _, c := range []struct {
		mode string
		kind error
		says string
	}{
		{"silent", driver.ErrRetry, "does not answer"},
		{"stalled", driver.ErrRetry, "does not answer"},
		{"wrong-id", driver.ErrRetry, "does not answer"},
		{"garbage", driver.ErrRetry, "invalid answer"},
		{"endless", driver.ErrRetry, "too long"},
		{"deep", driver.ErrRetry, "nested too deep"},
		{"lying", driver.ErrRetry, "the name of an interface"},
	} {
		g.set(c.mode)
		_, err := d.Interfaces(t.Context(), g.spec.UID)
		wantError(t, err, c.kind, c.says)
		g.setHonest()
		if got := g.run(nil, "echo", c.mode); got.out != c.mode+"\n" {
			t.Errorf("after %s: %+v", c.mode, got)
		}
	}
	g.set("stale")
	if got := g.run(nil, "echo", "after others"); got.out != "after others\n" {
		t.Errorf("after what others have left: %+v", got)
	}
	g.set("disabled")
	wantError(t, g.run(nil, "echo").err, driver.ErrUnsupported, "does not allow", "guest-exec")
	g.set("lying")
	if err := g.run(nil, "echo").err; err == nil || !strings.Contains(err.Error(), "may still run") || errors.Is(err, driver.ErrRetry) {
		t.Errorf("a lie about a command is %v", err)
	}

	g.set("off")
	assert.Eventually(t, "the agent is gone", func(t testing.TB) error {
		_, err := d.Interfaces(t.Context(), g.spec.UID)
		if !errors.Is(err, driver.ErrUnsupported) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	gone(t, d, g.spec)
	for _, link := range ownDescriptors(t) {
		if strings.HasPrefix(link, e.dir) && strings.Contains(link, "agent") {
			t.Errorf("%s is still open", link)
		}
	}
}

// TestAgentTaken checks that callers wait for an agent that another process talks to, for a
// while, and that nothing else waits for it.
func TestAgentTaken(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	g := bootAgent(t, e, d)
	g.setHonest()
	lock, err := os.Open(filepath.Join(d.InstanceOf(g.spec.UID).Path, "agent.lock"))
	must(t, err)
	defer func() { _ = lock.Close() }()
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	if s := reach(t, d, g.spec, driver.StateRunning); s.Err != nil {
		t.Errorf("it is %+v", s)
	}
	if used, err := d.Usage(t.Context(), g.spec.UID); len(used) != 1 || err != nil {
		t.Errorf("it uses %+v, %v", used, err)
	}
	attach(t, d, g.spec).shows(t, "is up")
	_, err = d.Interfaces(t.Context(), g.spec.UID)
	wantError(t, err, driver.ErrRetry, "busy")
	ctx, leave := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer leave()
	if _, err = d.Interfaces(ctx, g.spec.UID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := d.Interfaces(t.Context(), g.spec.UID)
		waits <- err
	}()
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	must(t, <-waits)
	gone(t, d, g.spec)
}

// ownDescriptors returns what this process has open.
func ownDescriptors(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	must(t, err)
	var open []string
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil {
			open = append(open, to)
		}
	}
	return open
}

// dialAndRead connects to a port of a guest, and checks what the guest answers.
func dialAndRead(t *testing.T, d *Driver, uid types.UID, port int32, says, want string) {
	t.Helper()
	conn, err := d.Dial(t.Context(), uid, port)
	must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, says)
	must(t, err)
	text := make([]byte, len(want))
	if _, err := io.ReadFull(conn, text); err != nil || string(text) != want {
		t.Errorf("port %d answers %q, %v", port, text, err)
	}
}

// TestDial checks connections to ports of a guest, which are open on all addresses of the host
// or on one.
func TestDial(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec, port := e.linuxSpec(t)
	const one = "127.0.0.1"
	spec.Ports = append(spec.Ports,
		driver.Port{Name: "echo", Protocol: "TCP", Port: 7, HostIP: one}, driver.Port{Name: "closed-on-one", Protocol: "TCP", Port: 81, HostIP: one},
		driver.Port{Name: "closed", Protocol: "TCP", Port: 82}, driver.Port{Name: "dns", Protocol: "UDP", Port: 53})
	reach(t, d, spec, driver.StateRunning)
	report(t, port)
	dialAndRead(t, d, spec.UID, 80, "GET /processes HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK\r\n")
	// Nothing of what the guest says first is lost.
	dialAndRead(t, d, spec.UID, 7, "and back\n", "drover linux guest\nand back\n")
	for _, closed := range []int32{81, 82} {
		_, err := d.Dial(t.Context(), spec.UID, closed)
		wantError(t, err, driver.ErrRetry, fmt.Sprintf("port %d of the guest", closed), "refused the connection")
	}
	for _, unpublished := range []int32{53, 8080, 0, -1} {
		_, err := d.Dial(t.Context(), spec.UID, unpublished)
		wantError(t, err, driver.ErrInvalid, fmt.Sprintf("port is %d: it must be", unpublished))
	}
	off := spec
	off.Power = driver.PowerOff
	reach(t, d, off, driver.StateStopped)
	_, err := d.Dial(t.Context(), spec.UID, 7)
	wantError(t, err, driver.ErrRetry, "does not run")
	gone(t, d, spec)
	_, err = d.Dial(t.Context(), spec.UID, 7)
	wantError(t, err, driver.ErrNotFound)
	_, err = d.Dial(t.Context(), "../x", 7)
	wantError(t, err, driver.ErrInvalid, "metadata.uid")
}

// TestDialOfWhatDoesNotListen checks that a guest without a network has taken no connection,
// although its host port accepts them.
func TestDialOfWhatDoesNotListen(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec := e.spec()
	spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}}
	boots(t, d, spec, "drover guest 1 A")
	// A QEMU that a loaded host keeps waiting cannot be asked within a second.
	assert.Eventually(t, "the guest takes no connection", func(t testing.TB) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := d.Dial(ctx, spec.UID, 80)
		wantError(t, err, driver.ErrRetry)
		if !strings.Contains(err.Error(), "took no connection") {
			return err
		}
		return nil
	})
	gone(t, d, spec)
}
