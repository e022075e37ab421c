// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestExec checks that input, output and the exit code pass unchanged, and that the end of
// the input reaches the command.
func TestExec(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.exec = func(_ context.Context, r terminal.Command) (int, error) {
		input, err := io.ReadAll(r.Stdin)
		if err != nil {
			return 0, err
		}
		_, _ = r.Stdout.Write(bytes.ToUpper(input))
		_, _ = io.WriteString(r.Stderr, strings.Join(r.Args, "|"))
		return len(r.Args), nil
	}
	var stdout, stderr bytes.Buffer
	input := strings.Repeat("some input ", 100_000)
	err := f.connect(t.Context(), "alice", f.url(streams.Exec, "command=a&command=b+c&stdin=true&stdout=true&stderr=true"),
		remotecommand.StreamOptions{Stdin: strings.NewReader(input), Stdout: &stdout, Stderr: &stderr})
	var code exec.CodeExitError
	assert.True(t, errors.As(err, &code) && code.Code == 2, "the end is %v, want exit code 2", err)
	assert.True(t, stdout.String() == strings.ToUpper(input) && stderr.String() == "a|b c",
		"%d bytes of %d came back, and %q", stdout.Len(), len(input), stderr.String())
	line := f.wantEnd(t, `"user"="alice"`, `"namespace"="demo"`, `"name"="vm"`, `"uid"="uid-1"`, `"stream"="exec"`, `"bytesIn"=1100000`, `"bytesOut"=1100005`, `"end"="exit code 2"`)
	assert.True(t, !strings.Contains(line, "b c") && !strings.Contains(line, "some input"), "the log has the command or its input: %s", line)
}

// TestExecWithTerminal checks that sizes pass, and that all output is the output of the terminal.
func TestExecWithTerminal(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.exec = func(ctx context.Context, r terminal.Command) (int, error) {
		for r.TTY {
			select {
			case size := <-r.Resize:
				if size == (terminal.Size{Width: 132, Height: 50}) {
					_, err := io.WriteString(r.Stdout, "large")
					return 0, err
				}
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		return 1, nil
	}
	var stdout bytes.Buffer
	sizes := sizeQueue{make(chan *remotecommand.TerminalSize, 2)}
	sizes.all <- &remotecommand.TerminalSize{Width: 80, Height: 24}
	sizes.all <- &remotecommand.TerminalSize{Width: 132, Height: 50}
	err := f.connect(t.Context(), "alice", f.url(streams.Exec, "command=sh&stdin=true&stdout=true&tty=true"),
		remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &stdout, Tty: true, TerminalSizeQueue: sizes})
	assert.True(t, err == nil && stdout.String() == "large", "the output is %q, %v", stdout.String(), err)
}

type sizeQueue struct {
	all chan *remotecommand.TerminalSize
}

func (q sizeQueue) Next() *remotecommand.TerminalSize { return <-q.all }

// TestExecErrors checks that an error of the driver is the end of the stream.
func TestExecErrors(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.exec = func(context.Context, terminal.Command) (int, error) {
		return 0, driver.Errorf(driver.ErrUnsupported, "the guest runs no agent")
	}
	err := f.connect(t.Context(), "alice", f.url(streams.Exec, "command=ls&stdout=true"), remotecommand.StreamOptions{Stdout: io.Discard})
	status := statusError(err)
	assert.True(t, status.Reason == streams.ReasonUnsupported && status.Message == "the guest runs no agent", "the end is %v", err)
}

// TestExitCodes checks that a code which no client can exit with is an error that says so.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.exec = func(_ context.Context, r terminal.Command) (int, error) { return strconv.Atoi(r.Args[0]) }
	for command, want := range map[string]string{
		"0": "", "255": "exit code 255", "256": "InternalError: the command ended with exit code 256", "-1": "exit code -1, which no client",
		"3221225786": "exit code 3221225786, which no client",
	} {
		err := f.connect(t.Context(), "alice", f.url(streams.Exec, "stdout=true&command="+command), remotecommand.StreamOptions{Stdout: io.Discard})
		assert.ErrorSays(t, command, err, want)
	}
}

// TestCommandEndsWithClient checks that a command ends when its client leaves, and that its
// input then is an error rather than complete.
func TestCommandEndsWithClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	input := make(chan error, 1)
	f.driver.exec = func(ctx context.Context, r terminal.Command) (int, error) {
		_, err := io.ReadAll(r.Stdin)
		input <- err
		<-ctx.Done()
		return 0, ctx.Err()
	}
	ws := f.dial(t, "alice", f.url(streams.Exec, "command=sh&stdin=true"))
	_ = ws.Close()
	assert.True(t, (<-input) != nil, "the command took the input for complete")
	f.wantEnd(t, `"end"="the client left"`)
}

// TestConsole checks that both of two callers read, that the second to write is refused, and
// that the end of the server has a separate reason.
func TestConsole(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	alice := f.startConsole(t, "alice")
	alice.write(t, "hello")
	alice.expect(t, "hello")

	bob := f.startConsole(t, "bob")
	alice.write(t, "again")
	bob.expect(t, "again")
	bob.write(t, "me too")
	status := statusError(<-bob.end)
	assert.True(t, status.Reason == streams.ReasonConsoleTaken, "the second to write sees %+v", status)

	f.console.stopServer()
	status = statusError(<-alice.end)
	assert.True(t, status.Reason == streams.ReasonServerStopped && status.Message == "the server has stopped", "at the end of the server the first sees %+v", status)
	f.waitForEnds(t, 2)
	assert.Equal(t, "consoles were closed, of 2", f.console.closed, 2)
}

// TestConsoleIsLost checks that a console whose connection fails ends in a way after which clients attach again.
func TestConsoleIsLost(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]error{
		"read":  errors.New("it closed the connection"),
		"retry": driver.Errorf(driver.ErrRetry, "it closed the connection"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, nil)
			alice := f.startConsole(t, "alice")
			alice.write(t, "hello")
			alice.expect(t, "hello")
			f.console.lose(cause)
			if status := statusError(<-alice.end); status.Reason != metav1.StatusReasonServiceUnavailable || !strings.Contains(status.Message, "the console was lost: ") {
				t.Errorf("the caller sees %+v", status)
			}
		})
	}
}

// consoleUser is a user at a console.
type consoleUser struct {
	typed  *io.PipeWriter
	output chan string
	end    chan error
	seen   string
}

func (f *fixture) startConsole(t *testing.T, who string) *consoleUser {
	t.Helper()
	u := &consoleUser{output: make(chan string, 100), end: make(chan error, 1)}
	var input *io.PipeReader
	input, u.typed = io.Pipe()
	t.Cleanup(func() { _ = u.typed.Close() })
	before := f.driver.console
	opened := make(chan struct{})
	f.driver.console = func(ctx context.Context) (io.ReadWriteCloser, error) {
		defer close(opened)
		return before(ctx)
	}
	go func() {
		u.end <- f.connect(t.Context(), who, f.url(streams.Console, ""), remotecommand.StreamOptions{Stdin: input, Stdout: u, Tty: true})
	}()
	<-opened
	f.driver.console = before
	return u
}

func (u *consoleUser) Write(p []byte) (int, error) {
	u.output <- string(p)
	return len(p), nil
}

func (u *consoleUser) write(t *testing.T, text string) {
	t.Helper()
	_, err := io.WriteString(u.typed, text)
	assert.NoError(t, err)
}

func (u *consoleUser) expect(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(u.seen, text) {
		u.seen += assert.Receive(t, fmt.Sprintf("%q follows %q", text, u.seen), u.output)
	}
}

// TestPortForward checks a connection in both directions, with a half-close by the client
// and the end by the server.
func TestPortForward(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		all, _ := io.ReadAll(conn) // until the client's half-close
		_, _ = conn.Write(bytes.ToUpper(all))
	}()
	ports := make(chan int32, 1)
	f.driver.dial = func(ctx context.Context, port int32) (net.Conn, error) {
		ports <- port
		return (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
	}
	var output bytes.Buffer
	input := strings.Repeat("abc", 200_000)
	err = f.connect(t.Context(), "alice", f.url(streams.PortForward, "port=80"), remotecommand.StreamOptions{Stdin: strings.NewReader(input), Stdout: &output})
	assert.True(t, err == nil && <-ports == 80 && output.String() == strings.ToUpper(input), "%d bytes came back of %d, %v", output.Len(), len(input), err)
}

// TestLog checks that a log that is followed arrives as it comes, and that its end by the
// server is complete while one by Drover is not.
func TestLog(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(*fixture, *io.PipeWriter)
		want error
	}{
		"server stops":     {func(_ *fixture, log *io.PipeWriter) { _ = log.Close() }, nil},
		"controller stops": {func(f *fixture, _ *io.PipeWriter) { f.stop() }, io.ErrUnexpectedEOF},
		"engine fails":     {func(_ *fixture, log *io.PipeWriter) { _ = log.CloseWithError(driver.ErrUnavailable) }, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, nil)
			reader, log := io.Pipe()
			f.driver.logs = func(_ context.Context, o driver.LogOptions) (io.ReadCloser, error) {
				if !o.Follow || o.TailLines == nil || *o.TailLines != 5 {
					return nil, errors.New("wrong options")
				}
				return reader, nil
			}
			body := f.openLog(t, "follow=true&tailLines=5")
			for _, line := range []string{"first\n", "second\n"} { // the second is sent after the first was read
				_, _ = io.WriteString(log, line)
				have := make([]byte, len(line))
				assert.Require(t, readFull(body, have) == line, "read %q", have)
			}
			test.end(f, log)
			assert.ErrorIs(t, "the end", assert.ErrorOf(io.ReadAll(body)), test.want)
		})
	}
}

// splitLog is a log of two streams, some of whose output was removed.
type splitLog struct {
	parts []string // those of standard error begin with an exclamation mark
	err   error
}

func (l *splitLog) ReadStream(p []byte) (n int, isStderr bool, err error) {
	if len(l.parts) == 0 {
		return 0, false, l.err
	}
	text, isStderr := strings.CutPrefix(l.parts[0], "!")
	l.parts = l.parts[1:]
	return copy(p, text), isStderr, nil
}

func (l *splitLog) Read(p []byte) (int, error) {
	n, _, err := l.ReadStream(p)
	return n, err
}

func (*splitLog) Close() error { return nil }

// TestLogByWebSocket checks that a WebSocket has the streams of a log apart, where the driver keeps them so, that lost
// output is its end, and that it goes on where a client was.
func TestLogByWebSocket(t *testing.T) {
	t.Parallel()
	parts := []string{"out\n", "!err\n", "more\n"}
	for name, test := range map[string]struct {
		log         io.ReadCloser
		query       string
		out, errOut string
		reason      metav1.StatusReason
	}{
		"apart":    {&splitLog{parts: parts, err: io.EOF}, "", "out\nmore\n", "err\n", ""},
		"lost":     {&splitLog{parts: parts, err: &terminal.LostOutputError{Stdout: 7, Stderr: 9}}, "", "out\nmore\n", "err\n", streams.ReasonOutputLost},
		"together": {io.NopCloser(strings.NewReader("all\nmore\n")), "attached=true&skipStdout=4", "more\n", "", ""},
		"short":    {io.NopCloser(strings.NewReader("all\n")), "attached=true&skipStdout=9", "", "", ""},
	} {
		f := newFixture(t, nil)
		f.driver.logs = func(context.Context, driver.LogOptions) (io.ReadCloser, error) { return test.log, nil }
		var out, errOut strings.Builder
		err := f.connect(t.Context(), "alice", f.url(streams.Log, test.query), remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut})
		assert.True(t, out.String() == test.out && errOut.String() == test.errOut, "%s: it has %q and %q", name, out.String(), errOut.String())
		if test.reason == "" {
			assert.NoError(t, err)
			continue
		}
		reason, text := streams.SplitReason(err.Error())
		stdout, stderr, badText := streams.ParseLostOutput(text)
		assert.True(t, reason == test.reason && badText == nil && stdout == 7 && stderr == 9, "%s: it ends with %v: %d and %d, %v", name, err, stdout, stderr, badText)
	}
}

func readFull(r io.Reader, p []byte) string {
	_, _ = io.ReadFull(r, p)
	return string(p)
}

func (f *fixture) openLog(t *testing.T, query string) io.ReadCloser {
	t.Helper()
	response := f.request(t, f.url(streams.Log, query))
	assert.Require(t, response.StatusCode == 200 && response.Header.Get("Content-Type") == "text/plain; charset=utf-8",
		"the log is answered by %d", response.StatusCode)
	return response.Body
}

// TestEndOfRights checks that a stream ends soon after its user's right, its VirtualMachine or
// its UID is gone, and says so.
func TestEndOfRights(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*testing.T, *fixture)
		reason string
	}{
		"right":  {func(_ *testing.T, f *fixture) { f.rules.set(func() { delete(f.rules.allowed, "alice") }) }, "Forbidden"},
		"answer": {func(_ *testing.T, f *fixture) { f.rules.set(func() { f.rules.err = errors.New("away") }) }, "ServiceUnavailable"},
		"VM":     {func(t *testing.T, f *fixture) { f.deleteVM(t) }, "Gone"},
		"UID": {func(t *testing.T, f *fixture) {
			f.deleteVM(t)
			f.create(t, framework.NewVM("vm").Namespace("demo").UID("uid-2").Bound("stub/engine-1"))
		}, "Gone"},
		"identity":   {func(_ *testing.T, f *fixture) { f.withdrawn.Store(true) }, "Unauthorized"},
		"idle":       {func(*testing.T, *fixture) {}, "Timeout"},
		"controller": {func(_ *testing.T, f *fixture) { go f.stop() }, "ServiceUnavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			now := framework.NewFakeClock(began)
			f := newFixture(t, func(h *Handler) { h.Clock = now })
			alice := f.startConsole(t, "alice")
			alice.write(t, "hello")
			alice.expect(t, "hello")
			test.change(t, f)
			step := cmp.Or(map[string]time.Duration{"idle": f.times.idle, "answer": f.times.unanswered}[name], f.times.check)
			assert.Eventually(t, "the stream ends", func(testing.TB) error {
				if now.Step(step); len(f.log.ends()) == 0 {
					return fmt.Errorf("after %s it goes on", now.Since(began))
				}
				return nil
			})
			status := statusError(<-alice.end)
			assert.True(t, string(status.Reason) == test.reason, "the end is %+v, want %s", status, test.reason)
			assert.True(t, f.console.closed == 1, "the console was closed %d times", f.console.closed)
		})
	}
}

// TestDeletedAccount checks that a stream ends soon after its ServiceAccount was deleted, although the RoleBindings
// remain, and that it ends much later if the API server does not answer whether the account exists.
func TestDeletedAccount(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change   func(t *testing.T, f *fixture, account *corev1.ServiceAccount)
		reason   string
		isUnread bool
		atLeast  time.Duration
	}{
		"deleted": {func(t *testing.T, f *fixture, a *corev1.ServiceAccount) {
			assert.NoError(t, f.objects.Delete(t.Context(), a))
		}, "Unauthorized", false, 0},
		"made again": {func(t *testing.T, f *fixture, a *corev1.ServiceAccount) {
			again := a.DeepCopy()
			again.UID, again.ResourceVersion = "another", ""
			assert.NoError(t, errors.Join(f.objects.Delete(t.Context(), a), f.objects.Create(t.Context(), again)))
		}, "Unauthorized", false, 0},
		"unread": {func(*testing.T, *fixture, *corev1.ServiceAccount) {}, "ServiceUnavailable", true, defaultTimes().unanswered},
		"there":  {func(*testing.T, *fixture, *corev1.ServiceAccount) {}, "Timeout", false, defaultTimes().idle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			now := framework.NewFakeClock(began)
			f := newFixture(t, func(h *Handler) {
				h.Clock = now
				if test.isUnread {
					h.Live = unread{h.Live}
				}
			})
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "robot", UID: "uid-of-robot"}}
			assert.NoError(t, f.objects.Create(t.Context(), account))
			console := f.startConsole(t, robot)
			console.write(t, "hello")
			console.expect(t, "hello")
			test.change(t, f, account)
			step := f.times.recheck
			if test.atLeast > f.times.unanswered {
				step = f.times.unanswered
			}
			assert.Eventually(t, "the stream ends", func(testing.TB) error {
				if now.Step(step); len(f.log.ends()) == 0 {
					return fmt.Errorf("after %s it goes on", now.Since(began))
				}
				return nil
			})
			if status := statusError(<-console.end); string(status.Reason) != test.reason || now.Since(began) < test.atLeast {
				t.Errorf("the end is %+v after %s, want %s after at least %s", status, now.Since(began), test.reason, test.atLeast)
			}
		})
	}
}

// unread reads no ServiceAccounts.
type unread struct{ client.Reader }

func (u unread) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, ok := o.(*corev1.ServiceAccount); ok {
		return errors.New("away")
	}
	return u.Reader.Get(ctx, key, o, options...)
}

// deleteVM deletes the VirtualMachine and its finalizer.
func (f *fixture) deleteVM(t *testing.T) {
	t.Helper()
	vm := framework.NewVM("vm").Namespace("demo").Obj()
	free := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	assert.NoError(t, errors.Join(f.objects.Patch(t.Context(), vm, free), f.objects.Delete(t.Context(), vm)))
}

// TestShortOutage checks that a stream outlives an API server that does not answer for a
// moment.
func TestShortOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(h *Handler) { h.times.check, h.times.recheck = time.Millisecond, time.Millisecond })
	alice := f.startConsole(t, "alice")
	f.rules.set(func() { f.rules.err = errors.New("away") })
	asked := len(f.log.get()) // each failure is logged
	assert.Eventually(t, "rights are asked for", func(testing.TB) error {
		return assert.ErrorUnless(len(f.log.get()) >= asked+3, "not yet")
	})
	alice.write(t, "hello")
	alice.expect(t, "hello")
}
