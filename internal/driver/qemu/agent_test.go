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
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/tier"
)

// checkDevices checks that a guest finds its devices, and its network interface among them, at the
// same addresses at each start.
func checkDevices(t *testing.T, before, after *guestReport) {
	assert.True(t, len(before.PCI) >= 10 && maps.Equal(before.PCI, after.PCI), "before the guest had %v, and now %v", before.PCI, after.PCI)
	assert.True(t, len(before.Network) == 1 && maps.Equal(before.Network, after.Network), "its network was %v, and is %v", before.Network, after.Network)
	seed := before.Disks["vdd"] // whose size follows its content, which was changed
	seed.Size = after.Disks["vdd"].Size
	before.Disks["vdd"] = seed
	assert.True(t, maps.Equal(before.Disks, after.Disks), "its disks were %v, and are %v", before.Disks, after.Disks)
}

// set gives the agent a mode: see hack/guest/linux/agent.go.
func (g *linuxGuest) set(t *testing.T, mode string) {
	t.Helper()
	g.ask(t, "/agent?mode="+mode)
}

// setHonest waits until the agent is reached again.
func (g *linuxGuest) setHonest(t *testing.T) {
	t.Helper()
	g.set(t, "honest")
	assert.Eventually(t, "the agent answers", func(t testing.TB) error {
		_, err := g.d.Interfaces(t.Context(), g.spec.UID)
		return err
	})
}

// ran is the result of a command.
type ran struct {
	code        int
	out, errors string
	err         error
}

func (g *linuxGuest) run(t *testing.T, stdin io.Reader, command ...string) ran {
	t.Helper()
	return g.runOn(t.Context(), g.d, stdin, command...)
}

func (g *linuxGuest) runOn(ctx context.Context, d *Driver, stdin io.Reader, command ...string) ran {
	var out, errOut bytes.Buffer
	code, err := d.Exec(ctx, g.spec.UID, terminal.Command{Args: command, Stdin: stdin, Stdout: &out, Stderr: &errOut})
	return ran{code, out.String(), errOut.String(), err}
}

// checkAgent checks commands in a guest, and the network that its agent reports.
func (g *linuxGuest) checkAgent(t *testing.T) {
	wantError(t, g.run(t, nil, "echo").err, driver.ErrUnsupported, "install the package qemu-guest-agent")
	wantError(t, assert.ErrorOf(g.d.Interfaces(t.Context(), g.spec.UID)), driver.ErrUnsupported, "qemu-guest-agent")
	g.setHonest(t)
	got, err := g.d.Interfaces(t.Context(), g.spec.UID)
	assert.NoError(t, err)
	if len(got) != 1 || got[0].Name != "eth0" || got[0].MAC != macOf(t, g.d, g.spec) ||
		!slices.Contains(got[0].Addresses, g.address(t)) {
		t.Errorf("the interfaces are %+v", got)
	}
	g.checkCommands(t)

	keepWatching(t, g.d)              // as controllers do, which set clocks
	g.ask(t, "/clock?set=1000000000") // as if it had been paused for long
	pause(t, g.d, g.spec)
	wantError(t, g.run(t, nil, "echo").err, driver.ErrRetry, "is paused")
	reach(t, g.d, g.spec, driver.StateRunning)
	assert.Eventually(t, "its clock is set", func(t testing.TB) error {
		now, err := strconv.ParseInt(g.ask(t, "/clock"), 10, 64)
		if behind := time.Since(time.Unix(now, 0)); err != nil || behind.Abs() > time.Hour {
			return fmt.Errorf("it is %s behind: %w", behind, err)
		}
		return nil
	})
	if got := g.run(t, nil, "echo", "on"); got.out != "on\n" {
		t.Errorf("resumed it is %+v", got)
	}
}

func (g *linuxGuest) checkCommands(t *testing.T) {
	t.Helper()
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
		got := g.run(t, c.stdin, c.command...)
		assert.True(t, got == c.want, "%s: %d, %.40q, %.40q, %v", name, got.code, got.out, got.errors, got.err)
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
		got := g.run(t, c.stdin, c.command...)
		wantError(t, got.err, c.kind, c.says)
		assert.Equal(t, name+": it printed", got.out, "")
	}
	cut := g.run(t, nil, "print", "4")
	wantError(t, cut.err, driver.ErrUnsupported, "longer than 3 MiB", "use ssh", "the exit code is 0")
	assert.True(t, cut.out == strings.Repeat("x", 3<<20), "%d bytes of the output came", len(cut.out))
	wantError(t, assert.ErrorOf(g.d.Exec(t.Context(), g.spec.UID, terminal.Command{Args: []string{"echo"}, TTY: true})), driver.ErrUnsupported, "terminal", "ssh", "console")
}

// checkExecTogether checks commands of several callers in several processes, and that a command
// ends when its caller leaves.
func (g *linuxGuest) checkExecTogether(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- g.runOn(ctx, g.d, nil, "sleep").err }()
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			word := fmt.Sprint("caller ", i)
			got := g.runOn(t.Context(), g.e.open(t), nil, "echo", word)
			assert.True(t, got.out == word+"\n", "%s: %+v", word, got)
		})
	}
	all.Wait()
	assert.Eventually(t, "one command runs", func(t testing.TB) error {
		n := g.ask(t, "/processes")
		return assert.ErrorUnless(n == "1", "there are %s", n)
	})
	leave()
	assert.ErrorIs(t, "Exec", <-left, context.Canceled)
	assert.Eventually(t, "the command ends", func(t testing.TB) error {
		n := g.ask(t, "/processes")
		return assert.ErrorUnless(n == "0", "%s run", n)
	})
	// A caller that types is not waited for.
	ctx, leave = context.WithCancel(t.Context())
	typed, closeTyped := io.Pipe()
	defer func() { _ = closeTyped.Close() }()
	go func() { left <- g.runOn(ctx, g.d, typed, "cat").err }()
	leave()
	assert.ErrorIs(t, "Exec", <-left, context.Canceled)
}

// checkExecIsLost checks that whoever waits for a command learns that its end is unknown if the supervisor is killed,
// and that the next one has the agent.
func (g *linuxGuest) checkExecIsLost(t *testing.T) {
	lost := make(chan error, 1)
	go func() { lost <- g.runOn(t.Context(), g.d, nil, "sleep").err }()
	assert.Eventually(t, "the command runs", func(t testing.TB) error {
		n := g.ask(t, "/processes")
		return assert.ErrorUnless(n == "1", "there are %s", n)
	})
	signalSupervisor(t, g.d.Host.InstanceOf(g.spec.UID), syscall.SIGKILL)
	err := <-lost
	wantError(t, err, nil, failure.ErrEndUnknown.Error())
	assert.Eventually(t, "the next supervisor runs commands", func(t testing.TB) error {
		got := g.runOn(t.Context(), g.d, nil, "echo", "again")
		if got.err == nil && got.out != "again\n" {
			return fmt.Errorf("it is %+v", got)
		}
		return got.err
	})
}

// checkHostileAgents checks that no agent makes a call wait for longer than it says, and that an
// honest one is reached after each. Package agent has many more.
func (g *linuxGuest) checkHostileAgents(t *testing.T) {
	for _, c := range []struct {
		mode     string
		kind     error
		says     string
		isSilent bool // so that it takes as long as the product waits for an answer
	}{
		{"silent", driver.ErrRetry, "does not answer", true},
		{"stalled", driver.ErrRetry, "does not answer", true},
		{"wrong-id", driver.ErrRetry, "does not answer", true},
		{"garbage", driver.ErrRetry, "invalid answer", false},
		{"endless", driver.ErrRetry, "invalid answer", false},
		{"deep", driver.ErrRetry, "invalid answer", false},
		{"lying", driver.ErrRetry, "invalid answer", false},
	} {
		if c.isSilent && !tier.IsFull() {
			continue
		}
		g.set(t, c.mode)
		wantError(t, assert.ErrorOf(g.d.Interfaces(t.Context(), g.spec.UID)), c.kind, c.says)
		g.setHonest(t)
		got := g.run(t, nil, "echo", c.mode)
		assert.True(t, got.out == c.mode+"\n", "after %s: %+v", c.mode, got)
	}
	g.set(t, "stale")
	got := g.run(t, nil, "echo", "after others")
	assert.True(t, got.out == "after others\n", "after what others have left: %+v", got)
	g.set(t, "disabled")
	wantError(t, g.run(t, nil, "echo").err, driver.ErrUnsupported, "does not allow")
	g.set(t, "lying")
	err := g.run(t, nil, "echo").err
	assert.True(t, err != nil && strings.Contains(err.Error(), "may still run") && !errors.Is(err, driver.ErrRetry), "a lie about a command is %v", err)
	g.set(t, "off")
	assert.Eventually(t, "the agent is gone", func(t testing.TB) error {
		_, err := g.d.Interfaces(t.Context(), g.spec.UID)
		if !errors.Is(err, driver.ErrUnsupported) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
}

// checkAgentTaken checks that nothing else waits for an agent that does not answer, and that a caller may leave.
func (g *linuxGuest) checkAgentTaken(t *testing.T) {
	g.setHonest(t)
	g.set(t, "silent")
	waits := make(chan error, 1)
	ask := func(ctx context.Context) {
		_, err := g.d.Interfaces(ctx, g.spec.UID)
		waits <- err
	}
	holding, letGo := context.WithCancel(t.Context())
	held := make(chan struct{})
	go func() {
		defer close(held)
		_, _ = g.d.Interfaces(holding, g.spec.UID)
	}()
	s := reach(t, g.d, g.spec, driver.StateRunning)
	assert.True(t, s.Err == nil, "it is %+v", s)
	if used, err := g.d.Usage(t.Context(), g.spec.UID); len(used) != 1 || err != nil {
		t.Errorf("it uses %+v, %v", used, err)
	}
	console, err := g.d.Console(t.Context(), g.spec.UID)
	assert.NoError(t, err)
	streams.ReadAll(t, console).WaitForText(t, "guest 2 is up")
	ctx, leave := context.WithCancel(t.Context())
	go ask(ctx)
	leave()
	assert.ErrorIs(t, "Interfaces", <-waits, context.Canceled)
	letGo()
	<-held
	g.setHonest(t)
}

// ownDescriptors returns what this process has open.
func ownDescriptors(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	assert.NoError(t, err)
	var open []string
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil {
			open = append(open, to)
		}
	}
	return open
}

// dialAndRead connects to a port of a guest, and checks what the guest answers.
func dialAndRead(t *testing.T, d *Driver, uid types.UID, port int32, line, want string) {
	t.Helper()
	conn, err := d.Dial(t.Context(), uid, port)
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	assert.NoError(t, assert.ErrorOf(io.WriteString(conn, line)))
	text := make([]byte, len(want))
	_, err = io.ReadFull(conn, text)
	assert.True(t, err == nil && string(text) == want, "port %d answers %q, %v", port, text, err)
}

// checkDial checks connections to ports of a guest, which are open on all addresses of the host
// or on one.
func (g *linuxGuest) checkDial(t *testing.T) {
	dialAndRead(t, g.d, g.spec.UID, 80, "GET /processes HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK\r\n")
	// Nothing of the guest's first line is lost.
	dialAndRead(t, g.d, g.spec.UID, 7, "and back\n", "drover linux guest\nand back\n")
	for _, closed := range []int32{81, 82, 8080} { // a port need not be published
		wantError(t, assert.ErrorOf(g.d.Dial(t.Context(), g.spec.UID, closed)), driver.ErrRetry, fmt.Sprintf("port %d of the guest", closed), "refused the connection")
	}
	for _, none := range []int32{0, -1, 1 << 16} {
		wantError(t, assert.ErrorOf(g.d.Dial(t.Context(), g.spec.UID, none)), driver.ErrInvalid, fmt.Sprintf("port is %d: it must be", none))
	}
	wantError(t, assert.ErrorOf(g.d.Dial(t.Context(), "../x", 7)), driver.ErrInvalid, "metadata.uid")
}
