// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"cloudnative.tw/drover/internal/terminal"
)

// Guest has the services that people reach in a machine: the console of its guest, and the guest agent.
type Guest interface {
	// Console attaches to the serial console until it is closed or ctx ends. A reader first gets the end
	// of the earlier output, then the output from then on, and io.EOF once the machine has ended. With
	// types set the caller may write. Only one caller may at a time, and failure.ErrTaken refuses another.
	Console(ctx context.Context, types bool) (io.ReadWriteCloser, error)
	// Exec runs a command until it ends, and returns its exit code, 128 plus the signal's number if
	// a signal ended it. The error may come with an exit code, as failure.ErrOutputCut does.
	Exec(ctx context.Context, c terminal.Command) (exitCode int, err error)
	// TakesInput reports whether a command gets input while it runs. Otherwise it starts once its input has ended.
	TakesInput() bool
	// Interfaces returns the network interfaces that the guest reports, without the loopback one.
	Interfaces(ctx context.Context) ([]Interface, error)
	// NetworkStatistics returns the figures of the guest's network. It needs no agent.
	NetworkStatistics(ctx context.Context) (NetworkStatistics, error)
}

// ConvertSizes returns the sizes of a terminal in another type, until from is closed or ctx ends.
func ConvertSizes[From, To any](ctx context.Context, from <-chan From, convert func(From) To) <-chan To {
	to := make(chan To)
	go func() {
		for {
			var size From
			var ok bool
			select {
			case size, ok = <-from:
			case <-ctx.Done():
			}
			if !ok {
				return
			}
			select {
			case to <- convert(size):
			case <-ctx.Done():
				return
			}
		}
	}()
	return to
}

// Interface is a network interface of a guest.
type Interface struct {
	Name      string         `json:"name"`
	MAC       string         `json:"mac,omitempty"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// maxName limits the name of an interface. Windows has long ones.
const maxName = 256

// isValid reports whether an interface can have these values.
func (i Interface) isValid() bool {
	isOdd := func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
	if i.Name == "" || len(i.Name) > maxName || strings.ContainsFunc(i.Name, isOdd) {
		return false
	}
	if mac, err := net.ParseMAC(i.MAC); i.MAC != "" && (err != nil || mac.String() != i.MAC) {
		return false
	}
	return !slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return !p.IsValid() || p.Addr().Zone() != "" })
}
