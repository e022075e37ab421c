// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package agent is a client of the QEMU guest agent, a program in a guest that executes the
// requests of its host.
//
// Start with Agent. Each call has one or more conversations (conversation.go), each over a
// connection from Connect. Conversations are short, since the agent serves one client at a
// time: the end of a command (exec.go) is polled. A guest may be hostile, so answer.go
// bounds how much is read and kept, every conversation has a time limit, and the content of
// answers is checked.
package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine/failure"
)

// Limits of a conversation. The time that Connect takes is not counted.
const (
	// silenceLimit is how long the agent may neither read nor send anything. An agent that polls
	// for clients needs 100 ms.
	silenceLimit = 10 * time.Second
	// writeAtOnce is how many bytes are written until the agent counts as silent.
	writeAtOnce = 64 << 10
	// conversationLimit bounds a whole conversation. The agent forgets a command once it begins
	// to report the end, so an answer of some megabytes from a slow guest must not be cut off.
	conversationLimit = 2 * time.Minute
)

// Agent is the guest agent of one machine.
type Agent struct {
	// Connect returns a connection to the agent. No other client, in this process or another,
	// has one at that time. It fails with failure.ErrNoAgent or failure.ErrBusy.
	Connect func(context.Context) (net.Conn, error)
	Clock   clock.Clock
}

// withConversation calls talk with a new conversation. It ends when ctx does, and fails with failure.ErrSilent
// if the agent exceeds a limit.
func (a Agent) withConversation(ctx context.Context, talk func(*conversation) error) error {
	conn, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, conversationLimit)
	defer cancel()
	timer := time.AfterFunc(silenceLimit, cancel)
	defer timer.Stop()
	closeOnce := context.AfterFunc(bounded, func() { _ = conn.Close() })
	defer func() {
		if closeOnce() {
			_ = conn.Close()
		}
	}()
	var c *conversation
	c = newConversation(watchedConn{conn, func() { timer.Reset(c.silence) }})
	if err = c.synchronize(); err == nil {
		err = talk(c)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("waiting for the guest agent: %w", context.Cause(ctx))
	case bounded.Err() != nil:
		return fmt.Errorf("%w: it sent nothing for %s, or the exchange took longer than %s", failure.ErrSilent, c.silence, conversationLimit)
	}
	return err
}

// watchedConn calls onActivity after every read, and after every writeAtOnce bytes that it writes.
type watchedConn struct {
	net.Conn
	onActivity func()
}

func (c watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.onActivity()
	return n, err
}

func (c watchedConn) Write(p []byte) (written int, err error) {
	for part := range slices.Chunk(p, writeAtOnce) {
		n, err := c.Conn.Write(part)
		c.onActivity()
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// SetTime sets the guest's clock to this host's, in UTC.
func (a Agent) SetTime(ctx context.Context) error {
	return a.withConversation(ctx, func(c *conversation) error {
		return c.executeCommand("guest-set-time", map[string]int64{"time": a.Clock.Now().UnixNano()}, &struct{}{})
	})
}

// Interfaces returns the guest's network interfaces. It omits an interface that has only
// loopback addresses.
func (a Agent) Interfaces(ctx context.Context) ([]report.Interface, error) {
	var reported []reportedInterface
	err := a.withConversation(ctx, func(c *conversation) error {
		return c.executeCommand("guest-network-get-interfaces", nil, &reported)
	})
	if err != nil {
		return nil, err
	}
	found := make([]report.Interface, 0, len(reported))
	for _, r := range reported {
		i, err := r.toInterface()
		if err != nil {
			return nil, err
		}
		if !isLoopback(i) {
			found = append(found, i)
		}
	}
	return found, nil
}

// reportedInterface is an interface as the agent reports it.
type reportedInterface struct {
	Name      string `json:"name"`
	MAC       string `json:"hardware-address"`
	Addresses []struct {
		IP     string `json:"ip-address"`
		Prefix int    `json:"prefix"`
	} `json:"ip-addresses"`
}

// toInterface rejects values that no interface can have. Its result is safe to print on a terminal.
func (r reportedInterface) toInterface() (report.Interface, error) {
	i := report.Interface{Name: r.Name}
	if r.Name == "" || r.Name != printableText(r.Name, report.MaxName) {
		return i, fmt.Errorf("%w: the name of an interface is %.80q", failure.ErrBadAnswer, r.Name)
	}
	if r.MAC != "" {
		mac, err := net.ParseMAC(r.MAC)
		if err != nil {
			return i, fmt.Errorf("%w: the hardware address of %s is %.80q", failure.ErrBadAnswer, i.Name, r.MAC)
		}
		i.MAC = mac.String()
	}
	for _, a := range r.Addresses {
		ip, err := netip.ParseAddr(a.IP)
		prefix := netip.PrefixFrom(ip.WithZone(""), a.Prefix)
		if err != nil || !prefix.IsValid() {
			return i, fmt.Errorf("%w: an address of %s is %.80q with the prefix %d", failure.ErrBadAnswer, i.Name, a.IP, a.Prefix)
		}
		i.Addresses = append(i.Addresses, prefix)
	}
	return i, nil
}

func isLoopback(i report.Interface) bool {
	for _, a := range i.Addresses {
		if !a.Addr().IsLoopback() {
			return false
		}
	}
	return len(i.Addresses) > 0 || i.Name == "lo"
}

// printableText returns at most maxBytes of a text from the guest. It removes control characters,
// which could be commands to a terminal.
func printableText(text string, maxBytes int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, text)
	return strings.ToValidUTF8(text[:min(len(text), maxBytes)], "")
}
