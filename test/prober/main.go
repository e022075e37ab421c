// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command prober runs in guests for tests of networks, and tries which addresses answer.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Target is an address to try.
type Target struct {
	// Protocol is tcp, udp, ping, or name for a question to the guest's resolver.
	Protocol string
	Address  string
	// ExpectSilence is set if no answer or error is expected, so that the try does not wait long.
	ExpectSilence bool
	// SendUntilReset is set to send again after the other end has ended its direction, as Docker's proxy does before it
	// closes a connection. If the connection is closed, sending causes a reset.
	SendUntilReset bool
}

const (
	// answerTimeout is longer than any answer or error takes, and silenceAfter is how long a try waits if none is
	// expected.
	answerTimeout = time.Minute
	silenceAfter  = 2 * time.Second
)

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		err = serve(os.Args[2])
	case len(os.Args) == 2 && os.Args[1] == "try":
		err = tryAll()
	case len(os.Args) == 2 && os.Args[1] == "addresses":
		err = printAddresses()
	default:
		err = errors.New("usage: prober serve NAME | try | addresses")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prober:", err)
		os.Exit(1)
	}
}

// serve answers with a name on port 80.
func serve(name string) error {
	packets, err := net.ListenPacket("udp", ":80") //nolint:noctx // it ends with its guest
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":80") //nolint:gosec,noctx // it ends with its guest
	if err != nil {
		return err
	}
	go func() {
		packet := make([]byte, 1500)
		for {
			if _, from, err := packets.ReadFrom(packet); err == nil {
				_, _ = packets.WriteTo([]byte(name), from)
			}
		}
	}()
	fmt.Println(name, "serves")
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = conn.Close() }()
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				_, _ = conn.Write([]byte(name))
			}
		}()
	}
}

// tryAll reads targets from standard input, tries all of them concurrently, and prints the results.
func tryAll() error {
	var targets []Target
	if err := json.NewDecoder(os.Stdin).Decode(&targets); err != nil {
		return err
	}
	results := make([]string, len(targets))
	var all sync.WaitGroup
	for n, target := range targets {
		all.Go(func() {
			var err error
			if results[n], err = target.try(); err != nil {
				results[n] = classify(err)
			}
		})
	}
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(results)
}

// classify returns a word for an error, which tests compare.
func classify(err error) string {
	isAnyOf := func(all ...error) bool {
		return slices.ContainsFunc(all, func(known error) bool { return errors.Is(err, known) })
	}
	var unknown *net.DNSError
	switch {
	case errors.As(err, &unknown) && unknown.IsNotFound:
		return "no such name"
	case errors.As(err, &unknown):
		return "no answer for the name"
	case isAnyOf(syscall.ECONNREFUSED):
		return "refused"
	case isAnyOf(syscall.EHOSTUNREACH, syscall.ENETUNREACH):
		return "unreachable"
	case isAnyOf(syscall.ECONNRESET):
		return "reset"
	case os.IsTimeout(err):
		return "silent"
	}
	return err.Error()
}

func (t Target) try() (string, error) {
	within := answerTimeout
	if t.ExpectSilence {
		within = silenceAfter
	}
	switch t.Protocol {
	case "name":
		addresses, err := net.LookupHost(t.Address) //nolint:noctx // the resolver has a limit
		return strings.Join(addresses, " "), err
	case "ping":
		return ping(t.Address, within)
	}
	conn, err := net.DialTimeout(t.Protocol, t.Address, within) //nolint:noctx // it has a limit
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(within))
	if _, err := conn.Write([]byte("?")); err != nil {
		return "", err
	}
	answer := make([]byte, 1500)
	n, err := conn.Read(answer)
	if t.SendUntilReset && errors.Is(err, io.EOF) {
		for err = nil; err == nil; {
			_, err = conn.Write([]byte("?"))
		}
		if errors.Is(err, syscall.EPIPE) { // Linux's error for a reset after the end of the other direction
			err = syscall.ECONNRESET
		}
	}
	return string(answer[:n]), err
}

// ping sends an echo request (RFC 792), and returns the result.
func ping(address string, within time.Duration) (string, error) {
	to, err := net.ResolveIPAddr("ip4", address)
	if err != nil {
		return "", err
	}
	conn, err := net.ListenPacket("ip4:icmp", "0.0.0.0") //nolint:noctx // at once
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	const echo, checksumOfEcho = 8, 0xf7ff // of a message that has nothing else
	request := binary.BigEndian.AppendUint16([]byte{echo, 0}, checksumOfEcho)
	request = append(request, 0, 0, 0, 0)
	if _, err := conn.WriteTo(request, to); err != nil {
		return "", err
	}
	_ = conn.SetDeadline(time.Now().Add(within))
	for answer := make([]byte, 1500); ; {
		n, from, err := conn.ReadFrom(answer)
		if err != nil {
			return "", err
		}
		if from.String() == to.String() && n > 0 && answer[0] == 0 {
			return "echo", nil
		}
	}
}

// printAddresses prints the addresses of the guest and of its gateway.
func printAddresses() error {
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	own, err := eth0.Addrs()
	if err != nil {
		return err
	}
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return err
	}
	for line := range bytes.Lines(routes) {
		if words := strings.Fields(string(line)); len(own) > 0 && len(words) > 2 && words[1] == "00000000" {
			var a [4]byte // in the order of the CPU's bytes
			if _, err := fmt.Sscanf(words[2], "%02X%02X%02X%02X", &a[3], &a[2], &a[1], &a[0]); err != nil {
				return err
			}
			fmt.Println(own[0].(*net.IPNet).IP, net.IP(a[:]))
			return nil
		}
	}
	return errors.New("there is no default route, or no address")
}
