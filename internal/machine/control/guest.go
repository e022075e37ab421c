// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"cloudnative.tw/drover/internal/machine/agent"
	"cloudnative.tw/drover/internal/terminal"
)

// Guest has the services that people reach in a machine: the console of its guest, and the guest agent.
type Guest interface {
	// Console attaches to the serial console until it is closed or ctx ends. A reader first gets the end
	// of the earlier output, then the output from then on, and io.EOF once the machine has ended. With
	// types set the caller may write. Only one caller may at a time, and ErrTaken refuses another.
	Console(ctx context.Context, types bool) (io.ReadWriteCloser, error)
	// Exec runs a command until it ends, and returns its exit code, 128 plus the signal's number if
	// a signal ended it. The error may come with an exit code, as ErrOutputCut does.
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

const (
	// MaxInputs limits the concurrent commands with input, since the agent receives an input as a whole.
	MaxInputs = 4
	// inputWithin limits how long a command's input may take to end.
	inputWithin = 5 * time.Minute
)

// Why a call of Guest fails, for errors.Is.
var (
	// ErrTaken means that another caller writes to the console.
	ErrTaken = errors.New("another caller writes to the console: it may be read, and written to once that caller has left")
	// ErrBusy means that the machine has the most streams that it may have, or its agent is busy.
	ErrBusy = errors.New("the machine is busy with other callers: try again")
	// ErrInputs means that MaxInputs commands with input run.
	ErrInputs = fmt.Errorf("%d commands with input run in the guest, which is the most: try again when one of them has ended", MaxInputs)
	// ErrInputOpen and ErrInputLong mean that a command's input has not ended in time, or is too long. The command
	// was not started.
	ErrInputOpen = fmt.Errorf("the input has not ended within %s: the guest agent starts a command only then, so pass a file, or use ssh or the console", inputWithin)
	ErrInputLong = fmt.Errorf("the input has more than %d MiB, which is the limit of the guest agent: use ssh for more", agent.MaxInput>>20)
	// ErrTerminal means that the agent gives no command a terminal.
	ErrTerminal = errors.New("tty: a command in this machine runs without a terminal, because the QEMU guest agent gives it none: leave it out, or use ssh or the console")
	// ErrPaused means that the guest is paused.
	ErrPaused = errors.New("the guest is paused")
	// ErrNoAgent means that no agent has opened its device in the guest.
	ErrNoAgent = errors.New("the guest runs no QEMU guest agent, or has not started it yet: install the package qemu-guest-agent in the guest")
	// ErrDisabled means that the agent lacks the command, or is configured to refuse it.
	ErrDisabled = errors.New("the guest agent does not allow what this needs")
	// ErrSilent means that the agent does not answer. ErrBadAnswer means that its answer is invalid.
	ErrSilent    = errors.New("the guest agent does not answer")
	ErrBadAnswer = errors.New("the guest agent gives an invalid answer")
	// ErrCommand means that the command cannot be started. ErrCommandNotFound and ErrCommandNotExecutable mean that the
	// guest reports why.
	ErrCommand              = errors.New("the command cannot be started")
	ErrCommandNotFound      = errors.New("the command is not found in the guest")
	ErrCommandNotExecutable = errors.New("the command cannot be executed in the guest")
	// ErrEndUnknown means that the command may have been started, and may still run.
	ErrEndUnknown = errors.New("how the command ends is not known, and it may still run")
	// ErrOutputCut means that a part of the output is missing.
	ErrOutputCut = fmt.Errorf("the output is longer than %d MiB, which is the limit of the guest agent, and the rest is missing: use ssh for more", agent.MaxOutput>>20)
)
