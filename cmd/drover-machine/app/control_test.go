// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// controlPort is the control port of machines that have a separate network.
const controlPort = 8443

// network is a network namespace, as a pod has one, and its address.
type network struct{ name, address string }

func newNetwork(t *testing.T) (n network) {
	t.Helper()
	n.name, n.address = framework.NewNetwork(t, 18)
	return n
}

// startControlled starts a machine in a separate network, and returns a client of it.
func (h *host) startControlled(t *testing.T, n network) (*guest, *control.Client) {
	t.Helper()
	seed := make([]byte, control.SeedBytes)
	server, err := control.MachineCredentials(seed, seed, h.described.UUID, "run", time.Now())
	client, clientErr := control.ClientCredentials(seed, h.described.UUID, "run", time.Now())
	forGuest, guestErr := control.GuestCredentials(seed, seed, h.described.UUID, "run", time.Now())
	assert.NoError(t, errors.Join(err, clientErr, guestErr))
	folder := h.newFolder(t, "control")
	for name, content := range map[string][]byte{
		control.CAFile: server.CA, control.CertFile: server.Cert, control.KeyFile: server.Key, control.GuestCAFile: server.GuestCA,
	} {
		assert.NoError(t, os.WriteFile(filepath.Join(folder, name), content, 0o600))
	}
	h.described.Control = &description.Control{Port: controlPort, Folder: folder}
	g := h.start(t)
	g.Path, err = exec.LookPath("ip")
	assert.NoError(t, err)
	g.Args = append([]string{"ip", "netns", "exec", n.name}, g.Args...)
	config, err := client.ClientConfig(h.described.UUID)
	guestConfig, guestErr := forGuest.ClientConfig(h.described.UUID)
	assert.NoError(t, errors.Join(err, guestErr))
	g.launch(t)
	address := net.JoinHostPort(n.address, strconv.Itoa(controlPort))
	g.reach = control.NewClient(address, guestConfig)
	return g, control.NewClient(address, config)
}

// wantState waits until a machine is in a state, and returns its status.
func wantState(t *testing.T, c *control.Client, want control.State) (s control.Status) {
	t.Helper()
	assert.Eventually(t, "the machine is "+string(want), func(t testing.TB) (err error) {
		if s, err = c.Status(t.Context()); err == nil && s.State != want {
			err = fmt.Errorf("it is %s", s.State)
		}
		return err
	})
	return s
}

// probeTimeout is how long one probe waits for a guest, which may be paused.
const probeTimeout = 5 * time.Second

func probeOnce(t testing.TB, c *control.Client, port int32) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
	defer cancel()
	return c.Probe(ctx, port)
}

// checkControl checks what a machine with the Linux guest can be asked from another host, and by whom.
func (g *guest) checkControl(t *testing.T, n network, c *control.Client) {
	t.Helper()
	s := wantState(t, c, control.StateRunning)
	assert.True(t, s.Accelerator == "tcg" && s.MemoryBytes >= 16<<20 && !s.StartedAt.IsZero() && time.Since(s.StartedAt) >= 0, "the status is %+v", s)
	assert.Check(t, "a guest that answers is probed", func(t testing.TB) error { return probeOnce(t, c, 80) })
	if later := wantState(t, c, control.StateRunning); later.CPUNanoseconds < s.CPUNanoseconds || s.CPUNanoseconds == 0 || !later.StartedAt.Equal(s.StartedAt) {
		t.Errorf("the status was %+v and is %+v", s, later)
	}
	assert.ErrorIs(t, "a probe of a port that is not forwarded", probeOnce(t, c, 81), failure.ErrUnknown)
	g.checkReached(t, n, c)
	testPause(t, c)
	g.testGrow(t, c)
	for _, address := range []string{n.address, "127.0.0.1", "::1"} {
		wantClosed(t, n, address)
	}
	g.wantResident(t)
	g.shutDown(t)
	assert.ErrorIs(t, "after the end the status", assert.ErrorOf(c.Status(t.Context())), failure.ErrUnreachable)
}

// checkReached checks the console of the Linux guest, and its agent.
func (g *guest) checkReached(t *testing.T, n network, controls *control.Client) {
	t.Helper()
	run := func(stdin io.Reader, args ...string) (out string, code int, err error) {
		var printed bytes.Buffer
		code, err = g.reach.Exec(t.Context(), terminal.Command{Args: args, Stdin: stdin, Stdout: &printed, Stderr: &printed})
		return printed.String(), code, err
	}
	_, _, err := run(nil, "echo")
	assert.ErrorIs(t, "a command without an agent", err, failure.ErrNoAgent)
	_, err = http.Get(fmt.Sprintf("http://%s:%d/agent?mode=honest", n.address, g.h.described.Forwards[0].HostPort)) //nolint:noctx,bodyclose // of a test
	assert.NoError(t, err)
	assert.Eventually(t, "the agent answers", func(testing.TB) error { return assert.ErrorOf(g.reach.Interfaces(t.Context())) })
	all, err := g.reach.Interfaces(t.Context())
	assert.True(t, err == nil && len(all) == 1 && all[0].Name == "eth0" && len(all[0].Addresses) != 0, "the interfaces are %+v, %v", all, err)
	for name, c := range map[string]struct {
		stdin io.Reader
		args  []string
		out   string
		code  int
		err   error
	}{
		"output":    {nil, []string{"echo", "a b"}, "a b\n", 0, nil},
		"input":     {strings.NewReader("a\x00\xff"), []string{"cat"}, "a\x00\xff", 0, nil},
		"exit code": {nil, []string{"exit", "7"}, "", 7, nil},
		"unknown":   {nil, []string{"no-such-program"}, "", 0, failure.ErrCommandNotFound},
		"a folder":  {nil, []string{"/proc"}, "", 0, failure.ErrCommandNotExecutable},
		"none":      {nil, nil, "", 0, failure.ErrCommand},
	} {
		if out, code, err := run(c.stdin, c.args...); out != c.out || code != c.code || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %d, %v, want %q, %d, %v", name, out, code, err, c.out, c.code, c.err)
		}
	}
	assert.NoError(t, controls.Pause(t.Context()))
	_, _, err = run(nil, "echo")
	assert.ErrorIs(t, "a command in a paused guest", err, failure.ErrPaused)
	assert.ErrorIs(t, "interfaces of a paused guest", assert.ErrorOf(g.reach.Interfaces(t.Context())), failure.ErrPaused)
	assert.NoError(t, controls.Resume(t.Context()))
	console, err := g.reach.Console(t.Context(), true)
	assert.NoError(t, err)
	assert.ErrorIs(t, "another one who types", assert.ErrorOf(g.reach.Console(t.Context(), true)), failure.ErrTaken)
	assert.NoError(t, assert.ErrorOf(io.WriteString(console, "typed\n")))
	waitForOutput(t, console, "typed")
	assert.NoError(t, console.Close())
}

// waitForOutput reads until a text comes.
func waitForOutput(t *testing.T, reader io.Reader, text string) {
	t.Helper()
	var all []byte
	for part := make([]byte, 1024); !bytes.Contains(all, []byte(text)); {
		n, err := reader.Read(part)
		all = append(all, part[:n]...)
		assert.Require(t, err == nil, "after %q: %v", all, err)
	}
}

// testPause pauses and resumes a guest, each twice.
func testPause(t *testing.T, c *control.Client) {
	t.Helper()
	for range 2 {
		assert.NoError(t, c.Pause(t.Context()))
	}
	wantState(t, c, control.StatePaused)
	assert.True(t, probeOnce(t, c, 80) != nil, "a paused guest answers")
	for range 2 {
		assert.NoError(t, c.Resume(t.Context()))
	}
	wantState(t, c, control.StateRunning)
	assert.Eventually(t, "a guest that was resumed answers", func(t testing.TB) error { return probeOnce(t, c, 80) })
}

// testGrow checks that disks grow while the guest runs, and never shrink.
func (g *guest) testGrow(t *testing.T, c *control.Client) {
	t.Helper()
	m := machine.Machine{Path: filepath.Join(g.run, "run"), Mark: g.h.described.UUID}
	for _, sizes := range []control.Sizes{{RootDisk: 8 << 20, Volumes: map[string]int64{"blank": 5 << 20}}, {RootDisk: 1 << 20}} {
		assert.NoError(t, assert.ErrorOf(c.Grow(t.Context(), sizes)))
		got, err := machine.Monitor{Executor: m}.DiskSizes(t.Context())
		assert.True(t, err == nil && got[launch.RootNode] == 8<<20 && got[launch.VolumeNode("blank")] == 5<<20, "after %+v the sizes are %v, %v", sizes, got, err)
	}
	for _, name := range []string{"fixed", "none"} {
		assert.ErrorIs(t, "the growth of volume "+name, assert.ErrorOf(c.Grow(t.Context(), control.Sizes{Volumes: map[string]int64{name: 4 << 20}})), failure.ErrUnknown)
	}
}

// wantClosed checks that a connection in the network of the machine is closed before it has sent
// anything.
func wantClosed(t *testing.T, n network, address string) {
	t.Helper()
	// read ends with 1 at the end of the stream, and with more than 128 after its timeout, which is
	// shorter than headerWithin: after that, the server closes any connection without a handshake.
	script := fmt.Sprintf("exec 3<>/dev/tcp/%s/%d || exit 2; read -r -n 1 -t 4 <&3; [[ $? -eq 1 ]]", address, controlPort)
	out, err := exec.CommandContext(t.Context(), "ip", "netns", "exec", n.name, "bash", "-c", script).CombinedOutput()
	assert.True(t, err == nil, "the connection to %s is not closed: %v: %s", address, err, out)
}

// TestControlWhileStarting checks that a machine says how far its disk is, and that no guest can
// be controlled yet.
func TestControlWhileStarting(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	h := newHost(t, false)
	const size = 1 << 40 // whose zeros take minutes to read
	assert.NoError(t, os.Truncate(h.image, size))
	g, c := h.startControlled(t, n)
	assert.Eventually(t, "the machine says how far its disk is", func(t testing.TB) error {
		s, err := c.Status(t.Context())
		if err == nil && (s.State != control.StateStarting || s.Copied == nil || s.Copied.Bytes == 0 || s.Copied.TotalBytes != size) {
			err = fmt.Errorf("it says %+v", s)
		}
		return err
	})
	for name, call := range map[string]func(context.Context) error{
		"pause": c.Pause, "resume": c.Resume,
		"grow":  func(ctx context.Context) error { return assert.ErrorOf(c.Grow(ctx, control.Sizes{RootDisk: 1})) },
		"probe": func(ctx context.Context) error { return c.Probe(ctx, 80) },
	} {
		assert.ErrorIs(t, name, call(t.Context()), failure.ErrNotRunning)
	}
	g.signal(t, syscall.SIGTERM)
	g.wantEnd(t, 7, "NotStarted", "a stop was requested before the guest ran")
}

// TestControlWhileStopping checks that a guest that is to shut down is not paused any more.
func TestControlWhileStopping(t *testing.T) {
	t.Parallel()
	g, c := newHost(t, true).startControlled(t, newNetwork(t))
	g.waitFor(t, "drover guest 1 A")
	g.signal(t, syscall.SIGTERM)
	s := wantState(t, c, control.StateStopping)
	assert.True(t, s.MemoryBytes != 0, "the status is %+v", s)
	assert.ErrorIs(t, "the pause of a guest that is to stop", c.Pause(t.Context()), failure.ErrNotRunning)
	g.signal(t, os.Interrupt)
	g.wantEnd(t, 6, "Forced", "")
}

// TestStopWhilePaused checks that a guest that is paused is resumed to shut down, and that one
// which does not is ended in time.
func TestStopWhilePaused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		isStubborn bool
		grace      int64
		code       int
		reason     string
	}{"guest that shuts down": {false, 3600, 0, "Completed"}, "stubborn guest": {true, 1, 6, "Forced"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, c.isStubborn)
			h.described.GracePeriodSeconds = c.grace
			g := h.begin(t, "drover guest 1 A")
			m := machine.Machine{Path: filepath.Join(g.run, "run"), Mark: h.described.UUID}
			assert.NoError(t, m.Execute(t.Context(), "stop", nil, nil))
			g.signal(t, syscall.SIGTERM)
			g.wantEnd(t, c.code, c.reason, "")
		})
	}
}

// probe runs the program that a kubelet runs in the container.
func (g *guest) probe(t testing.TB, arguments ...string) (string, error) {
	t.Helper()
	places := []string{"probe", "-description", filepath.Join(g.run, "machine.json"), "-run-folder", filepath.Join(g.run, "run")}
	out, err := exec.CommandContext(t.Context(), program, append(places, arguments...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return string(bytes.TrimSpace(out)), err
}

func (g *guest) wantRefused(t testing.TB, message string, arguments ...string) {
	t.Helper()
	out, err := g.probe(t, arguments...)
	assert.True(t, err != nil && strings.Contains(out, message), "a probe of %q says %q, %v, want %q", arguments, out, err, message)
}

// checkProbesOfStart launches the guest, and checks probes of it until it answers.
func (g *guest) checkProbesOfStart(t *testing.T) {
	t.Helper()
	g.wantRefused(t, "the guest does not answer at this port", "80") // there is none yet
	g.wantRefused(t, "the guest does not run yet", "-started")
	waited := make(chan error, 1)
	go func() {
		_, err := g.probe(t, "-started", "-timeout", "1h")
		waited <- err
	}()
	g.launch(t)
	assert.ErrorIs(t, "a probe that waits for the guest", <-waited, nil)
	assert.Eventually(t, "the guest answers", func(t testing.TB) error {
		_, err := g.probe(t, "-timeout", probeTimeout.String(), "80")
		return err
	})
}

// checkProbes checks probes of a guest that answers at port 80, and leaves it paused.
func (g *guest) checkProbes(t *testing.T) {
	t.Helper()
	assert.ErrorIs(t, "a guest that answers has not started", assert.ErrorOf(g.probe(t, "-started")), nil)
	g.wantRefused(t, "excludes a port", "-started", "80")
	g.wantRefused(t, "lacks TCP port 81", "81")
	g.wantRefused(t, "the arguments are []")
	g.wantRefused(t, `the arguments are ["http"]`, "http")
	g.wantRefused(t, `the arguments are ["0"]`, "0")
	g.wantReadinessFollowed(t)
	m := machine.Machine{Path: filepath.Join(g.run, "run"), Mark: g.h.described.UUID}
	assert.NoError(t, m.Execute(t.Context(), "stop", nil, nil))
	assert.Eventually(t, "a paused guest takes no connection", func(t testing.TB) error {
		g.wantRefused(t, "accepted no connection", "-timeout", "1s", "80") // within which QEMU has to answer
		return nil
	})
}

// wantReadinessFollowed checks that a probe follows a file that changes, of a guest that answers at
// port 80.
func (g *guest) wantReadinessFollowed(t *testing.T) {
	t.Helper()
	file := filepath.Join(g.h.dir, "readiness")
	for _, c := range []struct{ content, says string }{
		{"", ""},
		{`{"port":80,"timeoutSeconds":10}`, ""},
		{`{"port":81,"timeoutSeconds":10}`, "lacks TCP port 81"},
		{`{"port":0,"timeoutSeconds":1}`, "port is 0: it must be from 1 to 65535"},
		{`{"port":80}`, "timeoutSeconds is 0: it must be from 1 to 60"},
		{`{"port":80,"timeout":1}`, `unknown field "timeout"`},
	} {
		assert.NoError(t, os.WriteFile(file, []byte(c.content), 0o600))
		out, err := g.probe(t, "-readiness", file)
		assert.True(t, (err == nil) == (c.says == "") && strings.Contains(out, c.says), "a probe by %s says %q, %v, want %q", c.content, out, err, c.says)
	}
	out, err := g.probe(t, "-readiness", file, "80")
	assert.True(t, err != nil && strings.Contains(out, "excludes arguments"), "a probe by both says %q, %v", out, err)
	out, err = g.probe(t, "-readiness", filepath.Join(g.h.dir, "none"))
	assert.True(t, err != nil && strings.Contains(out, "no such file"), "a probe by a file that is missing says %q, %v", out, err)
}
