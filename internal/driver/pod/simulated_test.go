// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
)

// Ports of simulated guests: one repeats what it receives, and nothing listens at the other.
const echoPort, deadPort = 8080, 8081

// simulatedGuest is the guest of a simulatedMachine: its console prints what is typed, and it has
// some commands. TestGuest has a real one.
type simulatedGuest struct {
	mu      sync.Mutex
	changed sync.Cond // of the fields that follow
	printed string
	open    int
	typist  *simulatedConsole
	isOver  bool
}

func newSimulatedGuest() *simulatedGuest {
	g := &simulatedGuest{}
	g.changed.L = &g.mu
	return g
}

// change changes the guest.
func (g *simulatedGuest) change(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
	g.changed.Broadcast()
}

func (g *simulatedGuest) print(text string) { g.change(func() { g.printed += text }) }

// end ends the guest. It returns once its consoles have read that.
func (g *simulatedGuest) end() {
	g.change(func() { g.isOver = true })
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.open > 0 {
		g.changed.Wait()
	}
}

// Console implements control.Guest.
func (g *simulatedGuest) Console(ctx context.Context, types bool) (io.ReadWriteCloser, error) {
	c := &simulatedConsole{g: g}
	c.close = sync.OnceFunc(c.leave)
	g.mu.Lock()
	defer g.mu.Unlock()
	if types && g.typist != nil {
		return nil, failure.ErrTaken
	}
	if types {
		g.typist = c
	}
	g.open++
	context.AfterFunc(ctx, c.close)
	return c, nil
}

type simulatedConsole struct {
	g        *simulatedGuest
	read     int
	isClosed bool
	close    func()
}

// Read implements io.Reader.
func (c *simulatedConsole) Read(p []byte) (int, error) {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	for c.read == len(c.g.printed) && !c.g.isOver && !c.isClosed {
		c.g.changed.Wait()
	}
	if c.read == len(c.g.printed) || c.isClosed {
		return 0, io.EOF
	}
	n := copy(p, c.g.printed[c.read:])
	c.read += n
	return n, nil
}

// Write implements io.Writer.
func (c *simulatedConsole) Write(p []byte) (int, error) {
	c.g.print(string(p))
	return len(p), nil
}

// Close implements io.Closer.
func (c *simulatedConsole) Close() error {
	c.close()
	return nil
}

func (c *simulatedConsole) leave() {
	c.g.change(func() {
		c.isClosed = true
		c.g.open--
		if c.g.typist == c {
			c.g.typist = nil
		}
	})
}

// Exec implements control.Guest.
func (*simulatedGuest) Exec(ctx context.Context, c terminal.Command) (exitCode int, err error) {
	if c.TTY {
		return 0, failure.ErrTerminalUnsupported
	}
	switch c.Args[0] {
	case "echo":
		_, err = fmt.Fprintln(c.Stdout, c.Args[1])
	case "warn":
		_, err = fmt.Fprintln(c.Stderr, c.Args[1])
	case "cat":
		if c.Stdin != nil {
			_, err = io.Copy(c.Stdout, c.Stdin)
		}
	case "exit":
		return strconv.Atoi(c.Args[1])
	case "folder":
		return 0, failure.ErrCommandNotExecutable
	default:
		return 0, failure.ErrCommandNotFound
	}
	if ctx.Err() != nil {
		err = failure.ErrEndUnknown
	}
	return 0, err
}

// Interfaces implements control.Guest.
func (*simulatedGuest) Interfaces(context.Context) ([]report.Interface, error) {
	return []report.Interface{{Name: "eth0", MAC: "52:54:00:12:34:56", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.2.15/24")}}}, nil
}

// NetworkStatistics implements control.Guest.
func (*simulatedGuest) NetworkStatistics(context.Context) (report.NetworkStatistics, error) {
	return report.NetworkStatistics{PacketsIn: 7}, nil
}

// listenEcho repeats what connections to echoPort of an address send, until ctx ends.
func listenEcho(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(echoPort)))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return nil
}

// guestActions describes the simulated guests to the suite.
func (e *contractEngine) guestActions(h drivertest.Harness) drivertest.Guest {
	one := func(program string) func(string) []string {
		return func(word string) []string { return []string{program, word} }
	}
	return drivertest.Guest{
		Spec: func(t *testing.T) driver.ServerSpec {
			t.Helper()
			spec := h.Spec(t)
			spec.Ports = []driver.Port{{Protocol: "TCP", Port: echoPort}, {Protocol: "TCP", Port: deadPort}}
			return spec
		},
		Print: func(_ *testing.T, _ driver.Driver, s driver.Server, word string) {
			e.change(s, func(m *simulatedMachine) { m.guest.print(word + "\n") })
		},
		Type: func(word string) string { return word },
		Commands: drivertest.Commands{
			Print: one("echo"), Complain: one("warn"), Copy: []string{"cat"}, Killed: []string{"exit", "137"}, NotExecutable: []string{"folder"},
			Exit: func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
		},
		Port: echoPort, DeadPort: deadPort,
		Talk: func(t *testing.T, conn net.Conn) {
			t.Helper()
			const text = "is anybody there?"
			assert.NoError(t, assert.ErrorOf(io.WriteString(conn, text)))
			got := make([]byte, len(text))
			_, err := io.ReadFull(conn, got)
			assert.True(t, err == nil && strings.EqualFold(string(got), text), "the guest repeats %q, %v", got, err)
		},
	}
}

// TakesInput implements control.Guest.
func (g *simulatedGuest) TakesInput() bool { return false }
