// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"errors"
	"io"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"cloudnative.tw/drover/internal/driver"
)

// serveConsole joins the client with the console until the server stops.
func (c *call) serveConsole() error {
	consoler, err := capability[driver.Consoler](c)
	if err != nil {
		return err
	}
	return c.serveJoined(func() (io.ReadWriteCloser, error) {
		return withTimeout(c, func() (io.ReadWriteCloser, error) { return consoler.Console(c.ctx, c.vm.UID) })
	}, ending{errStopped, explainLoss})
}

// explainLoss returns how a console ends whose connection fails: as one to which the client attaches again, unless the
// client is the cause. The process that follows a machine may end while the machine runs on.
func explainLoss(err error) error {
	_, isKnown := errors.AsType[*apierrors.StatusError](err)
	for _, cause := range []error{errClientLeft, errFinished, driver.ErrConsoleTaken, driver.ErrUnsupported} {
		isKnown = isKnown || errors.Is(err, cause)
	}
	if isKnown {
		return err
	}
	return unavailableError("the console was lost: %v", err)
}

// ending is how a stream ends that is joined with a connection.
type ending struct {
	// atEOF is the end once the connection was read to its end.
	atEOF error
	// onError returns the end if the connection fails.
	onError func(error) error
}

// serveJoined opens a connection, then the WebSocket, and joins the two.
func (c *call) serveJoined(open func() (io.ReadWriteCloser, error), ends ending) error {
	if err := checkHandshake(c.r, c.stream); err != nil {
		return err
	}
	conn, err := open()
	if err != nil {
		return err
	}
	closed := sync.OnceFunc(func() { _ = conn.Close() })
	context.AfterFunc(c.ctx, closed)
	defer closed()
	return c.overWebSocket(func(s *session) error { return s.joinConnection(conn, ends) })
}
