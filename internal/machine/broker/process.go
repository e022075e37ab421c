// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/confine"
)

// Command is the first argument of the program. The last one is the program's digest.
const Command = "connect-machines"

// Descriptors that the program is given.
const (
	lockFD = 3 + iota
	listenerFD
	programFD
	lastFD
)

const (
	// noHandle is no descriptor: the program signals no process.
	noHandle = -1
	// unusedWithin is how long a broker waits for its first machine.
	unusedWithin = 3 * time.Second
	// acceptAgain is when drivers are accepted again after there were too many open files.
	acceptAgain = 100 * time.Millisecond
)

// Rights are the rights of the broker.
var Rights = confine.Rights{MayPair: true}

// Main is the program, and returns its exit code. It ends once it has no machine, and no driver is connected. It may be
// killed at any time: the driver starts another.
func Main(ctx context.Context, arguments []string) int {
	if err := run(ctx, arguments); err != nil {
		fmt.Fprintln(os.Stderr, "drover-machine:", err)
		return 1
	}
	return 0
}

func run(ctx context.Context, arguments []string) error {
	if err := confine.DenyStarts(noHandle, Rights); err != nil {
		return err
	}
	for fd := lockFD; fd < lastFD; fd++ {
		unix.CloseOnExec(fd)
	}
	_ = unix.Close(programFD)
	file := os.NewFile(listenerFD, "listener")
	listener, err := net.FileListener(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	b := newBroker(arguments[len(arguments)-1])
	unused := time.AfterFunc(unusedWithin, func() { b.countConnections(0) })
	defer unused.Stop()
	return b.listen(ctx, listener)
}

// listen serves drivers until there are neither machines nor drivers, or a driver needs another version of the program.
func (b *Broker) listen(ctx context.Context, listener net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer func() { _ = listener.Close() }()
		select {
		case <-b.idle:
		case <-ctx.Done():
		}
	}()
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			<-time.After(acceptAgain)
			continue
		}
		if err != nil {
			return err
		}
		go func() {
			if !b.serve(ctx, conn.(*net.UnixConn)) { //nolint:forcetypeassert // the listener's
				stop()
			}
		}()
	}
}
