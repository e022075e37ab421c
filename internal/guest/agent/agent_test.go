// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/guest/client"
	"cloudnative.tw/drover/internal/guest/process"
	"cloudnative.tw/drover/internal/guest/users"
	"cloudnative.tw/drover/internal/guest/wire"
	"cloudnative.tw/drover/test/assert"
)

// table has all that the agents of this package's tests start. One call reaps for all of them, so no
// test here may start a process by other means.
var table = process.NewTable()

func TestMain(m *testing.M) {
	go table.Reap()
	os.Exit(m.Run())
}

// port is a port of a guest, to which connections come and which they leave.
type port struct {
	arrivals chan net.Conn
	mu       sync.Mutex
	conn     net.Conn
	closed   chan struct{}
}

func newPort(t *testing.T) *port {
	p := &port{arrivals: make(chan net.Conn), closed: make(chan struct{})}
	t.Cleanup(func() { close(p.closed) })
	return p
}

func (p *port) current() net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn
}

func (p *port) set(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn = conn
}

func (p *port) Read(b []byte) (int, error) {
	if p.current() == nil {
		select {
		case conn := <-p.arrivals:
			p.set(conn)
		case <-p.closed:
			return 0, net.ErrClosed
		}
	}
	n, err := p.current().Read(b)
	if err != nil {
		p.set(nil)
		return n, io.EOF
	}
	return n, nil
}

func (p *port) Write(b []byte) (int, error) {
	conn := p.current()
	if conn == nil {
		return 0, io.ErrClosedPipe
	}
	return conn.Write(b)
}

// connect returns a connection of the host.
func (p *port) connect(t *testing.T) net.Conn {
	t.Helper()
	host, guest := net.Pipe()
	select {
	case p.arrivals <- guest:
	case <-t.Context().Done():
	}
	return host
}

var nonce = bytes.Repeat([]byte("nonce"), 6)

// serve starts an agent, perhaps with an input of the entrypoint, and returns its port.
func serve(t *testing.T, input ...*Input) *port {
	t.Helper()
	p := newPort(t)
	me := users.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Groups: []uint32{uint32(os.Getgid())}, Home: "/home/me"} //nolint:gosec // IDs
	a := &Agent{Table: table, Base: Base{Env: []string{"A=entrypoint"}, Defaults: []string{"PATH=" + process.DefaultPath}, Dir: "/"}}
	a.Lookup = func(text string) (users.User, error) {
		if text != "" {
			return users.User{}, fmt.Errorf("user is %q, which the image's /etc/passwd does not have", text)
		}
		return me, nil
	}
	if len(input) > 0 {
		a.Input = input[0]
	}
	go func() { _ = a.Serve(p, nonce) }()
	return p
}

func dial(t *testing.T, p *port) *client.Client {
	t.Helper()
	c, err := client.New(t.Context(), p.connect(t), nonce)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// output runs a shell's script.
func output(t *testing.T, c *client.Client, stdin, script string, change ...func(*client.Command)) (client.Exit, string, string) {
	t.Helper()
	var out, errs bytes.Buffer
	command := client.Command{Exec: wire.Exec{Args: []string{"sh", "-c", script}}, Stdout: &out, Stderr: &errs}
	if stdin != "" {
		command.Stdin = strings.NewReader(stdin)
	}
	for _, f := range change {
		f(&command)
	}
	exit, err := c.Exec(t.Context(), command)
	assert.NoError(t, err)
	return exit, out.String(), errs.String()
}

// TestExec checks what a program gets and gives.
func TestExec(t *testing.T) {
	t.Parallel()
	c := dial(t, serve(t))
	for name, test := range map[string]struct {
		stdin, script, out, errs string
		code, signal             int
		change                   func(*client.Command)
	}{
		"code":       {script: "echo out; echo errors >&2; exit 3", out: "out\n", errs: "errors\n", code: 3},
		"signal":     {script: "kill -9 $$", code: 137, signal: 9},
		"input":      {stdin: "first\nsecond\n", script: "cat; echo end", out: "first\nsecond\nend\n"},
		"no input":   {script: "cat; echo end", out: "end\n"},
		"unread":     {stdin: strings.Repeat("x", 10*wire.InputWindow), script: "exit 4", code: 4},
		"long":       {stdin: strings.Repeat("x", 10*wire.InputWindow), script: "wc -c", out: fmt.Sprintf("%d\n", 10*wire.InputWindow)},
		"much":       {script: "head -c 3000000 /dev/zero | tr '\\0' y", out: strings.Repeat("y", 3_000_000)},
		"env":        {script: "echo $A $B $HOME", out: "entrypoint b /home/me\n", change: func(c *client.Command) { c.Env = []string{"B=b"} }},
		"env wins":   {script: "echo $A", out: "other\n", change: func(c *client.Command) { c.Env = []string{"A=other"} }},
		"folder":     {script: "pwd", out: "/usr\n", change: func(c *client.Command) { c.WorkingDir = "/usr" }},
		"terminal":   {script: "stty size; test -t 0 && echo $TERM", out: "7 90\r\nxterm\r\n", change: terminal},
		"typed":      {stdin: "a\n", script: "stty -echo; read x; echo got $x; cat", out: "", change: typed},
		"background": {script: "sleep 30 & echo started", out: "started\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			change := test.change
			if change == nil {
				change = func(*client.Command) {}
			}
			exit, out, errs := output(t, c, test.stdin, test.script, change)
			assert.True(t, exit.Code == test.code && exit.Signal == test.signal, "it ends with %+v, want %d and %d; %q", exit, test.code, test.signal, errs)
			if name == "typed" {
				assert.Contains(t, "it prints", out, "got a")
				return
			}
			assert.True(t, out == test.out && errs == test.errs, "it prints %.100q and %.100q, want %.100q and %.100q", out, errs, test.out, test.errs)
		})
	}
}

func terminal(c *client.Command) {
	c.TTY, c.Size, c.Stderr = true, wire.Size{Rows: 7, Columns: 90}, nil
}

func typed(c *client.Command) { c.TTY, c.Stderr = true, nil }

// TestRefused checks what is said of programs that cannot run.
func TestRefused(t *testing.T) {
	t.Parallel()
	c := dial(t, serve(t))
	nobody, plain := "nobody", filepath.Join(t.TempDir(), "plain")
	assert.NoError(t, os.WriteFile(plain, []byte("#!/no/interpreter\n"), 0o600))
	script := filepath.Join(t.TempDir(), "script")
	assert.NoError(t, os.WriteFile(script, []byte("#!/no/interpreter\n"), 0o700))
	rubbish := filepath.Join(t.TempDir(), "rubbish")
	assert.NoError(t, os.WriteFile(rubbish, []byte("rubbish"), 0o700))
	for says, test := range map[string]struct {
		exec wire.Exec
		kind error
	}{
		`"no-such-program" is not found in the folders of PATH`: {wire.Exec{Args: []string{"no-such-program"}}, client.ErrNotFound},
		`"/no/such" is not found in the image`:                  {wire.Exec{Args: []string{"/no/such"}}, client.ErrNotFound},
		`not executable: it is a folder`:                        {wire.Exec{Args: []string{"/usr"}}, client.ErrNotExecutable},
		`not executable: its mode is -rw-------`:                {wire.Exec{Args: []string{plain}}, client.ErrNotExecutable},
		`the interpreter or loader that it names is not`:        {wire.Exec{Args: []string{script}}, client.ErrNotFound},
		`neither a program for this processor nor a script`:     {wire.Exec{Args: []string{rubbish}}, client.ErrNotExecutable},
		`user is "nobody"`:                                      {wire.Exec{Args: []string{"true"}, User: &nobody}, client.ErrRefused},
		`the working directory "/no/folder" is not a folder`:    {wire.Exec{Args: []string{"true"}, WorkingDir: "/no/folder"}, client.ErrRefused},
		`names no program`:                                      {wire.Exec{}, client.ErrRefused},
	} {
		_, err := c.Exec(t.Context(), client.Command{Exec: test.exec, Stdout: io.Discard, Stderr: io.Discard})
		assert.ErrorIs(t, says, err, test.kind, says)
	}
}

// TestLeave checks that a command whose caller leaves is hung up on, though it reads no input, and
// that others go on.
func TestLeave(t *testing.T) {
	t.Parallel()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // under nohup, the shell could not trap it
	c := dial(t, serve(t))
	for _, tty := range []bool{false, true} {
		mark := filepath.Join(t.TempDir(), "mark")
		ctx, leave := context.WithCancel(t.Context())
		started, out := io.Pipe()
		ended := make(chan error, 1)
		script := fmt.Sprintf("trap '' PIPE; trap 'echo hup >%s; exit' HUP; echo up; sleep 1000 & wait", mark) // no fork is under way when the signal comes
		go func() {
			ended <- assert.ErrorOf(c.Exec(ctx, client.Command{
				Exec: wire.Exec{Args: []string{"sh", "-c", script}, TTY: tty}, Stdin: strings.NewReader(strings.Repeat("x", 3*wire.InputWindow)),
				Stdout: out, Stderr: io.Discard,
			}))
		}()
		assert.NoError(t, readUntil(started, "up")) // behind what a terminal echoes
		go func() { _, _ = io.Copy(io.Discard, started) }()
		leave()
		assert.ErrorIs(t, "the call", assert.Receive(t, "the end of the call", ended), context.Canceled)
		assert.Eventually(t, "the command to get SIGHUP", func(testing.TB) error { return assert.ErrorOf(os.Stat(mark)) })
	}
	exit, out, _ := output(t, c, "", "echo on")
	assert.True(t, exit.Code == 0 && out == "on\n", "afterwards: %+v %q", exit, out)
}

// TestInputLikeNonce checks that a command gets input that ends like the beginning of a greeting while nothing follows.
func TestInputLikeNonce(t *testing.T) {
	t.Parallel()
	c := dial(t, serve(t))
	stdin, in := io.Pipe()
	stdout, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- assert.ErrorOf(c.Exec(t.Context(), client.Command{Exec: wire.Exec{Args: []string{"cat"}}, Stdin: stdin, Stdout: out, Stderr: io.Discard}))
	}()
	text := "x" + string(nonce[:len(nonce)-1])
	_, err := io.WriteString(in, text)
	assert.NoError(t, err)
	back := make(chan error, 1)
	go func() { back <- readUntil(stdout, text) }()
	assert.NoError(t, assert.Receive(t, "the input to come back", back))
	assert.NoError(t, in.Close())
	assert.NoError(t, assert.Receive(t, "the end of the command", ended))
}

// readUntil reads up to a text.
func readUntil(r io.Reader, text string) error {
	seen, b := "", make([]byte, 1)
	for !strings.HasSuffix(seen, text) {
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		seen += string(b)
	}
	return nil
}

// TestReconnect checks that a new connection gets a new session, whatever was on its way in
// the one before, and that nothing of the old one comes.
func TestReconnect(t *testing.T) {
	t.Parallel()
	p := serve(t)
	for round := range 20 {
		conn := p.connect(t)
		c, err := client.New(t.Context(), conn, nonce)
		assert.NoError(t, err)
		ended := make(chan error, 1)
		go func() {
			ended <- assert.ErrorOf(c.Exec(t.Context(), client.Command{Exec: wire.Exec{Args: []string{"yes"}}, Stdout: io.Discard, Stderr: io.Discard}))
		}()
		exit, out, _ := output(t, c, "", "echo $((1+1))")
		assert.Require(t, exit.Code == 0 && out == "2\n", "round %d: %+v %q", round, exit, out)
		_ = conn.Close()
		assert.ErrorIs(t, "a command of a lost connection", assert.Receive(t, "its end", ended), client.ErrLost)
	}
}

// TestNonce checks that whoever does not know the nonce gets nothing.
func TestNonce(t *testing.T) {
	t.Parallel()
	p := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := client.New(ctx, p.connect(t), bytes.Repeat([]byte("other"), 6))
	assert.ErrorIs(t, "another nonce", err, context.DeadlineExceeded)
	assert.NoError(t, assert.ErrorOf(dial(t, p).Interfaces(t.Context())))
}

// TestFiles checks that files arrive as they are, in both directions.
func TestFiles(t *testing.T) {
	t.Parallel()
	c := dial(t, serve(t))
	from, to := filepath.Join(t.TempDir(), "from"), t.TempDir()
	assert.NoError(t, os.MkdirAll(filepath.Join(from, "a", "empty"), 0o750))
	assert.NoError(t, os.WriteFile(filepath.Join(from, "a", "big"), bytes.Repeat([]byte("big"), 500_000), 0o640))
	assert.NoError(t, os.WriteFile(filepath.Join(from, "run"), nil, 0o755))
	assert.NoError(t, os.Symlink("a/big", filepath.Join(from, "link")))
	var archive bytes.Buffer
	assert.NoError(t, c.ReadFiles(t.Context(), from, &archive))
	names := listTar(t, archive.Bytes())
	want := "from from/a from/a/big from/a/empty from/link from/run"
	assert.True(t, names == want, "the archive has %s, want %s", names, want)
	assert.NoError(t, c.WriteFiles(t.Context(), to, bytes.NewReader(archive.Bytes()), io.Discard))
	assert.NoError(t, c.WriteFiles(t.Context(), to, bytes.NewReader(archive.Bytes()), io.Discard))
	content, err := os.ReadFile(filepath.Join(to, "from", "link"))
	if assert.NoError(t, err); len(content) != 1_500_000 {
		t.Errorf("the link leads to %d bytes", len(content))
	}
	info, err := os.Stat(filepath.Join(to, "from", "run"))
	if assert.NoError(t, err); info.Mode() != 0o755 {
		t.Errorf("the mode of run is %s", info.Mode())
	}
	for says, err := range map[string]error{
		"no such file":      c.ReadFiles(t.Context(), "/no/such", io.Discard),
		"lstat /ns":         c.ReadFiles(t.Context(), "ns/none", io.Discard), // in the entrypoint's folder
		"no/such":           c.WriteFiles(t.Context(), "/no/such/", bytes.NewReader(archive.Bytes()), io.Discard),
		"unexpected EOF":    c.WriteFiles(t.Context(), to, bytes.NewReader(archive.Bytes()[:1000]), io.Discard),
		"begins with":       c.WriteFiles(t.Context(), to, bytes.NewReader(tarOf(t, "../x", tar.TypeReg)), io.Discard),
		"neither file":      c.WriteFiles(t.Context(), to, bytes.NewReader(tarOf(t, "x", tar.TypeChar)), io.Discard),
		"the caller's disk": c.WriteFiles(t.Context(), to, io.MultiReader(bytes.NewReader(archive.Bytes()[:1000]), failing{}), io.Discard),
	} {
		assert.ErrorSays(t, says, err, says)
	}
	assert.NoError(t, assert.ErrorOf(c.Interfaces(t.Context())))
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the caller's disk") }

func listTar(t *testing.T, archive []byte) string {
	t.Helper()
	var names []string
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return strings.Join(names, " ")
		}
		assert.NoError(t, err)
		names = append(names, strings.TrimSuffix(header.Name, "/"))
	}
}

func tarOf(t *testing.T, name string, kind byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	assert.NoError(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: kind, Mode: 0o644}))
	assert.NoError(t, w.Close())
	return b.Bytes()
}

// TestManyCallers checks that more callers than the agent serves at a time all get their turn.
func TestManyCallers(t *testing.T) {
	t.Parallel()
	c := dial(t, serve(t))
	var group sync.WaitGroup
	for i := range 4 * wire.MaxStreams {
		group.Go(func() {
			exit, out, _ := output(t, c, fmt.Sprint(i), "cat")
			assert.True(t, exit.Code == 0 && out == fmt.Sprint(i), "caller %d: %+v %q", i, exit, out)
		})
	}
	group.Wait()
}
