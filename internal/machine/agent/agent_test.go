// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
)

// guest answers in place of a guest's agent.
type guest struct {
	// answer returns what it sends for a command other than a synchronization.
	answer func(command string, arguments map[string]any) string
	// before is the text that it sends before each answer to a synchronization.
	before string
	// isSilent, while it is set, makes it read and answer nothing.
	isSilent atomic.Bool
	// pause is how long it pauses after every byte of an answer.
	pause time.Duration
	// refuse is the error of Connect.
	refuse error

	open  atomic.Int32
	asked []string
	mu    sync.Mutex // guards answer where a test changes it
}

// setAnswer changes answer while it may be in use.
func (g *guest) setAnswer(answer func(command string, arguments map[string]any) string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = answer
}

func (g *guest) agent() Agent { return Agent{Connect: g.connect, Clock: clock.RealClock{}} }

// countedConn counts connections that are open.
type countedConn struct {
	net.Conn
	open *atomic.Int32
}

func (c countedConn) Close() error {
	c.open.Add(-1)
	return c.Conn.Close()
}

func (g *guest) connect(context.Context) (net.Conn, error) {
	if g.refuse != nil {
		return nil, g.refuse
	}
	here, there := net.Pipe()
	g.open.Add(1)
	go g.serve(there)
	return countedConn{here, &g.open}, nil
}

func (g *guest) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for lines := bufio.NewReader(conn); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var r struct {
			Execute   string
			Arguments map[string]any
		}
		if err := json.Unmarshal(bytes.TrimLeft(line, "\xff"), &r); err != nil {
			panic(err)
		}
		if g.isSilent.Load() {
			continue
		}
		if err := g.send(conn, g.reply(r.Execute, r.Arguments)); err != nil {
			return
		}
	}
}

func (g *guest) send(conn net.Conn, text string) error {
	// The client may not read what comes after the last brace before it writes again.
	for g.pause > 0 && len(text) > 2 {
		time.Sleep(g.pause)
		if _, err := io.WriteString(conn, text[:1]); err != nil {
			return err
		}
		text = text[1:]
	}
	_, err := io.WriteString(conn, text)
	return err
}

func (g *guest) reply(command string, arguments map[string]any) string {
	if command == "guest-sync-delimited" {
		return fmt.Sprintf("%s\xff{\"return\": %.0f}\n", g.before, arguments["id"])
	}
	g.asked = append(g.asked, command)
	if command == "guest-info" {
		return `{"return":{"version":"9.2.1","supported_commands":[{"name":"guest-exec","enabled":true},{"name":"guest-exec-status","enabled":true}]}}` + "\n"
	}
	g.mu.Lock()
	answer := g.answer
	g.mu.Unlock()
	return answer(command, arguments)
}

// checkClosed checks that no connection is left.
func (g *guest) checkClosed(t *testing.T) {
	t.Helper()
	assert.Equal(t, "connections are open", g.open.Load(), 0)
}

// commands answers guest-exec, and the n-th guest-exec-status with the n-th text.
func commands(statuses ...string) func(string, map[string]any) string {
	n := -1
	return func(command string, _ map[string]any) string {
		if command == "guest-exec" {
			return `{"return":{"pid":4711}}`
		}
		n = min(n+1, len(statuses)-1)
		return statuses[n]
	}
}

const runs = `{"return":{"exited":false}}`

// TestExec checks how commands end.
func TestExec(t *testing.T) {
	t.Parallel()
	long := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), failure.MaxOutput+1))
	for name, c := range map[string]struct {
		statuses []string
		want     Result
		err      error
		says     string
	}{
		"at once":        {[]string{`{"return":{"exited":true,"exitcode":0,"out-data":"YQ=="}}`}, Result{Stdout: []byte("a")}, nil, ""},
		"later":          {[]string{runs, runs, runs, `{"return":{"exited":true,"exitcode":3,"err-data":"Yg=="}}`}, Result{ExitCode: 3, Stderr: []byte("b")}, nil, ""},
		"by a signal":    {[]string{`{"return":{"exited":true,"signal":15}}`}, Result{ExitCode: 143}, nil, ""},
		"by Windows":     {[]string{`{"return":{"exited":true,"signal":3221225477}}`}, Result{ExitCode: 255}, nil, ""},
		"far below 0":    {[]string{`{"return":{"exited":true,"exitcode":-2147483648}}`}, Result{ExitCode: -1 << 31}, nil, ""},
		"cut by us":      {[]string{`{"return":{"exited":true,"exitcode":1,"out-data":"` + long + `"}}`}, Result{ExitCode: 1, Stdout: bytes.Repeat([]byte("x"), failure.MaxOutput)}, failure.ErrOutputCut, "the exit code is 1"},
		"cut by it":      {[]string{`{"return":{"exited":true,"exitcode":1,"out-data":"YQ==","out-truncated":true}}`}, Result{ExitCode: 1, Stdout: []byte("a")}, failure.ErrOutputCut, "use ssh"},
		"no code":        {[]string{`{"return":{"exited":true}}`}, Result{}, failure.ErrEndUnknown, "exit code of the command is missing or too large"},
		"a large code":   {[]string{`{"return":{"exited":true,"exitcode":4294967296}}`}, Result{}, failure.ErrEndUnknown, "exit code of the command is missing or too large"},
		"a larger code":  {[]string{`{"return":{"exited":true,"exitcode":1e300}}`}, Result{}, failure.ErrEndUnknown, "exitcode"},
		"no base64":      {[]string{`{"return":{"exited":true,"exitcode":0,"out-data":"\u001b[2J"}}`}, Result{}, failure.ErrEndUnknown, "invalid answer"},
		"unknown":        {[]string{`{"error":{"class":"GenericError","desc":"PID 4711 does not exist"}}`}, Result{}, failure.ErrEndUnknown, "PID 4711 does not exist"},
		"neither":        {[]string{`{}`}, Result{}, failure.ErrEndUnknown, "invalid answer"},
		"another answer": {[]string{`{"return":[]}`}, Result{}, failure.ErrEndUnknown, "invalid answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &guest{answer: commands(c.statuses...)}
				got, err := g.agent().Exec(t.Context(), Command{Args: []string{"x"}})
				assert.ErrorIs(t, "Exec", err, c.err, c.says)
				assert.True(t, !errors.Is(err, failure.ErrEndUnknown) || !errors.Is(err, failure.ErrBadAnswer), "%v would be tried again", err)
				assert.True(t, got.ExitCode == c.want.ExitCode && bytes.Equal(got.Stdout, c.want.Stdout) && bytes.Equal(got.Stderr, c.want.Stderr),
					"got %d, %d bytes, %d bytes", got.ExitCode, len(got.Stdout), len(got.Stderr))
				g.checkClosed(t)
			})
		})
	}
}

// TestResults checks that the end of a command is not queried while too many results are in memory, and
// that a command without a result does not count.
func TestResults(t *testing.T) {
	t.Parallel()
	const noCode = `{"return":{"exited":true}}`
	synctest.Test(t, func(t *testing.T) {
		g := &guest{answer: commands(noCode, runs, `{"return":{"exited":true,"exitcode":0}}`)}
		command := Command{Args: []string{"x"}, Results: semaphore.NewWeighted(1)}
		assert.ErrorIs(t, "a command without an exit code", assert.ErrorOf(g.agent().Exec(t.Context(), command)), failure.ErrEndUnknown)
		assert.NoError(t, assert.ErrorOf(g.agent().Exec(t.Context(), command)))
		asked, ended := len(g.asked), make(chan error)
		go func() { ended <- assert.ErrorOf(g.agent().Exec(t.Context(), command)) }()
		time.Sleep(time.Hour)
		added := g.asked[asked:]
		assert.True(t, slices.Equal(added, []string{"guest-info", "guest-exec"}), "beside a result in memory it is asked %q", added)
		command.Results.Release(1)
		assert.NoError(t, <-ended)
		ctx, leave := context.WithTimeout(t.Context(), time.Hour)
		defer leave()
		assert.ErrorIs(t, "a command whose caller leaves", assert.ErrorOf(g.agent().Exec(ctx, command)), context.DeadlineExceeded)
		command.Results.Release(1)
		assert.True(t, command.Results.TryAcquire(1), "a command without a result has kept a place")
		g.checkClosed(t)
	})
}

// TestArguments checks what the agent gets of a command.
func TestArguments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got map[string]any
		g := &guest{answer: func(command string, arguments map[string]any) string {
			if command == "guest-exec" {
				got = arguments
				return `{"return":{"pid":1}}`
			}
			return `{"return":{"exited":true,"exitcode":0}}`
		}}
		assert.NoError(t, assert.ErrorOf(g.agent().Exec(t.Context(), Command{Args: []string{"sh", "-c", "echo \"a\"\n"}, Stdin: []byte("in\xff")})))
		text, _ := json.Marshal(got)
		want := `{"arg":["-c","echo \"a\"\n"],"capture-output":true,"input-data":"aW7/","path":"sh"}`
		assert.True(t, string(text) == want, "it gets %s, want %s", text, want)
		assert.True(t, slices.Equal(g.asked, []string{"guest-info", "guest-exec", "guest-exec-status"}), "it is asked %q", g.asked)
	})
}

// TestSlowAnswer checks that an answer may take longer than an agent may be silent, and not
// for ever.
func TestSlowAnswer(t *testing.T) {
	t.Parallel()
	for pause, want := range map[time.Duration]error{500 * time.Millisecond: nil, 5 * time.Second: failure.ErrSilent, 11 * time.Second: failure.ErrSilent} {
		synctest.Test(t, func(t *testing.T) {
			g := &guest{pause: pause, answer: func(string, map[string]any) string { return `{"return":[]}` + "\n" }}
			begin := time.Now()
			_, err := g.agent().Interfaces(t.Context())
			assert.True(t, errors.Is(err, want) && time.Since(begin) <= conversationLimit,
				"%s after each byte: after %s: %v, want %v", pause, time.Since(begin), err, want)
			g.checkClosed(t)
			time.Sleep(pause) // until the guest notices that
		})
	}
}

// TestSilence checks that a call ends although the agent does not answer, and that an agent
// may be silent for a while during a command.
func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &guest{answer: commands(runs)}
		g.isSilent.Store(true)
		begin := time.Now()
		_, err := g.agent().Interfaces(t.Context())
		assert.True(t, errors.Is(err, failure.ErrSilent) && time.Since(begin) == silenceLimit, "after %s: %v", time.Since(begin), err)
		g.isSilent.Store(false)

		for silence, want := range map[time.Duration]error{20 * time.Second: nil, time.Hour: failure.ErrEndUnknown} {
			g := &guest{answer: commands(runs)}
			go func() {
				time.Sleep(time.Minute)
				g.isSilent.Store(true)
				time.Sleep(silence)
				g.setAnswer(commands(`{"return":{"exited":true,"exitcode":0}}`))
				g.isSilent.Store(false)
			}()
			begin := time.Now()
			_, err := g.agent().Exec(t.Context(), Command{Args: []string{"x"}})
			assert.True(t, errors.Is(err, want) && (err == nil) == (want == nil) && time.Since(begin) <= 2*time.Minute,
				"%s of silence: after %s: %v", silence, time.Since(begin), err)
			g.checkClosed(t)
			time.Sleep(time.Hour)
		}
	})
}

// TestLargeInput checks that a slow guest may take longer to read a command's input, and then to
// start the command, than an agent may otherwise be silent.
func TestLargeInput(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		statuses := commands(`{"return":{"exited":true,"exitcode":0}}`)
		g := &guest{answer: func(command string, arguments map[string]any) string {
			time.Sleep(2 * silenceLimit)
			return statuses(command, arguments)
		}}
		a := g.agent()
		a.Connect = func(ctx context.Context) (net.Conn, error) {
			conn, err := g.connect(ctx)
			return slowConn{conn}, err
		}
		input := bytes.Repeat([]byte("x"), 1<<20)
		assert.NoError(t, assert.ErrorOf(a.Exec(t.Context(), Command{Args: []string{"cat"}, Stdin: input})))
		g.checkClosed(t)
	})
}

// slowConn takes 20 seconds for a MiB.
type slowConn struct{ net.Conn }

func (c slowConn) Write(p []byte) (int, error) {
	time.Sleep(20 * time.Second * time.Duration(len(p)) / (1 << 20))
	return c.Conn.Write(p)
}

// TestBusy checks that a command goes on while other clients keep the agent, each for as long
// as it may, and that this does not hide an agent which is silent whenever it is asked.
func TestBusy(t *testing.T) {
	t.Parallel()
	for isSilent, want := range map[bool]error{false: nil, true: failure.ErrEndUnknown} {
		synctest.Test(t, func(t *testing.T) {
			g := &guest{answer: commands(runs)}
			var isBusy atomic.Bool
			a := g.agent()
			a.Connect = func(ctx context.Context) (net.Conn, error) {
				if isBusy.Load() {
					time.Sleep(15 * time.Second)
					return nil, failure.ErrBusy
				}
				return g.connect(ctx)
			}
			go func() {
				time.Sleep(time.Minute)
				g.isSilent.Store(isSilent)
				for range 20 { // others take turns with this client
					isBusy.Store(true)
					time.Sleep(conversationLimit)
					isBusy.Store(false)
					time.Sleep(12 * time.Second)
				}
				g.setAnswer(commands(`{"return":{"exited":true,"exitcode":0}}`))
				g.isSilent.Store(false)
			}()
			_, err := a.Exec(t.Context(), Command{Args: []string{"x"}})
			assert.True(t, errors.Is(err, want) && (err == nil) == (want == nil), "silent: %t, got %v, want %v", isSilent, err, want)
			g.checkClosed(t)
			time.Sleep(2 * time.Hour)
		})
	}
}

// TestLeave checks that a command ends when its caller leaves, and that nothing of the command is
// left in the agent.
func TestLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		isKilled, reaped := false, map[float64]bool{}
		g := &guest{answer: func(command string, arguments map[string]any) string {
			switch {
			case command == "guest-exec" && arguments["path"] == "kill":
				isKilled = fmt.Sprint(arguments["arg"]) == "[4711]"
				return `{"return":{"pid":4712}}`
			case command == "guest-exec":
				return `{"return":{"pid":4711}}`
			case arguments["pid"] == 4711.0 && !isKilled:
				return runs
			}
			reaped[arguments["pid"].(float64)] = true
			return `{"return":{"exited":true,"signal":15}}`
		}}
		cause := errors.New("the caller has left")
		ctx, leave := context.WithCancelCause(t.Context())
		go func() {
			time.Sleep(time.Minute)
			leave(cause)
		}()
		_, err := g.agent().Exec(ctx, Command{Args: []string{"x"}})
		assert.True(t, errors.Is(err, cause) && isKilled && len(reaped) == 2, "%v, killed: %t, asked for the end of %v", err, isKilled, reaped)
		g.checkClosed(t)

		// An agent that does not answer does not delay that for long.
		g.isSilent.Store(true)
		ctx, leave = context.WithCancelCause(t.Context())
		go func() {
			time.Sleep(time.Second)
			leave(cause)
		}()
		begin := time.Now()
		_, err = g.agent().Interfaces(ctx)
		assert.True(t, errors.Is(err, cause) && time.Since(begin) == time.Second, "after %s: %v", time.Since(begin), err)
		g.agent().killCommand(ctx, 1)
		assert.Equal(t, "it took", time.Since(begin), time.Second+killTimeout)
		g.checkClosed(t)
	})
}

// TestNotStarted checks commands that are not started.
func TestNotStarted(t *testing.T) {
	t.Parallel()
	refusal := func(string, map[string]any) string {
		return `{"error":{"class":"GenericError","desc":"Failed to execute \u001b[31m\u202e` + strings.Repeat("x", 1000) + `"}}`
	}
	for name, c := range map[string]struct {
		guest   *guest
		command Command
		want    error
		says    string
	}{
		"empty":      {&guest{}, Command{}, failure.ErrCommand, "it is empty"},
		"no name":    {&guest{}, Command{Args: []string{""}}, failure.ErrCommand, "it is empty"},
		"zero byte":  {&guest{}, Command{Args: []string{"a", "b\x00"}}, failure.ErrCommand, "command[1]"},
		"long":       {&guest{}, Command{Args: []string{strings.Repeat("x", maxArguments+1)}}, failure.ErrCommand, "131073 bytes"},
		"input":      {&guest{}, Command{Args: []string{"x"}, Stdin: make([]byte, failure.MaxInput+1)}, failure.ErrCommand, "more than 2 MiB"},
		"refused":    {&guest{answer: refusal}, Command{Args: []string{"x"}}, failure.ErrCommand, "Failed to execute [31mxxx"},
		"no agent":   {&guest{refuse: failure.ErrNoAgent}, Command{Args: []string{"x"}}, failure.ErrNoAgent, "qemu-guest-agent"},
		"blocked":    {&guest{answer: func(string, map[string]any) string { return `{"error":{"class":"CommandNotFound"}}` }}, Command{Args: []string{"x"}}, failure.ErrDisabled, "guest-exec"},
		"a lie":      {&guest{answer: func(string, map[string]any) string { return `{"return":{"pid":-1}}` }}, Command{Args: []string{"x"}}, failure.ErrEndUnknown, "lacks a process ID"},
		"half of it": {&guest{answer: func(string, map[string]any) string { return `{"return":{"pid"` }}, Command{Args: []string{"x"}}, failure.ErrEndUnknown, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, err := c.guest.agent().Exec(t.Context(), c.command)
				assert.Require(t, errors.Is(err, c.want) && strings.Contains(err.Error(), c.says), "got %v, want %v with %q", err, c.want, c.says)
				text := err.Error()
				assert.True(t, len(text) <= 500 && !strings.ContainsAny(text, "\x1b\u202e"), "got %q", text)
				c.guest.checkClosed(t)
			})
		})
	}
}

// TestDisabled checks agents that list what they allow.
func TestDisabled(t *testing.T) {
	t.Parallel()
	c := newConversation(struct {
		io.Reader
		io.Writer
	}{strings.NewReader(`{"return":{"supported_commands":[{"name":"guest-exec","enabled":true},{"name":"guest-exec-status","enabled":false}]}}`), io.Discard})
	assert.ErrorIs(t, "requireExec", requireExec(c), failure.ErrDisabled, "guest-exec-status")
}

// TestInterfaces checks which parts of an answer are taken, and which are refused.
func TestInterfaces(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answer, want string }{
		"usual": {
			`[{"name":"lo","hardware-address":"00:00:00:00:00:00","ip-addresses":[{"ip-address":"127.0.0.1","prefix":8},{"ip-address":"::1","prefix":128}]},
			{"name":"eth0","hardware-address":"52:54:00:AA:00:01","ip-addresses":[{"ip-address":"10.0.2.15","prefix":24},{"ip-address":"fe80::1%eth0","prefix":64}],"statistics":{"rx-bytes":1}}]`,
			"[{eth0 52:54:00:aa:00:01 [10.0.2.15/24 fe80::1/64]}] <nil>",
		},
		"none":           {`[]`, "[] <nil>"},
		"down":           {`[{"name":"lo"},{"name":"eth1"}]`, "[{eth1  []}] <nil>"},
		"Windows":        {`[{"name":"Loopback Pseudo-Interface 1","ip-addresses":[{"ip-address":"127.0.0.1","prefix":8}]},{"name":"以太网"}]`, "[{以太网  []}] <nil>"},
		"escape":         {`[{"name":"\u001b]0;x\u0007"}]`, "the name of an interface"},
		"right to left":  {`[{"name":"a\u202eb"}]`, "the name of an interface"},
		"no UTF-8":       {"[{\"name\":\"a\xc3\"}]", "the name of an interface"},
		"long":           {`[{"name":"` + strings.Repeat("x", 257) + `"}]`, "the name of an interface"},
		"MAC":            {`[{"name":"x","hardware-address":"y"}]`, `the hardware address of x is "y"`},
		"address":        {`[{"name":"x","ip-addresses":[{"ip-address":"1.2.3"}]}]`, "an address of x"},
		"prefix":         {`[{"name":"x","ip-addresses":[{"ip-address":"1.2.3.4","prefix":33}]}]`, "an address of x"},
		"negative":       {`[{"name":"x","ip-addresses":[{"ip-address":"1.2.3.4","prefix":-1}]}]`, "an address of x"},
		"another answer": {`{"name":"x"}`, "invalid answer"},
		"nothing":        {``, "invalid answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &guest{answer: func(string, map[string]any) string { return `{"return":` + c.answer + "}\n" }}
				found, err := g.agent().Interfaces(t.Context())
				got := fmt.Sprint(found, " ", err)
				assert.True(t, strings.Contains(got, c.want), "got %s, want %s", got, c.want)
				g.checkClosed(t)
			})
		})
	}
}
