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

// serveConsole connects the client with the server's console until the server stops.
func (c *call) serveConsole() error {
	consoler, err := capability[driver.Consoler](c)
	if err != nil {
		return err
	}
	return c.serveConnection(func() (io.ReadWriteCloser, error) {
		return withTimeout(c, func() (io.ReadWriteCloser, error) { return consoler.Console(c.ctx, c.vm.UID) })
	}, streamEnds{errStopped, explainConsoleLoss})
}

// explainConsoleLoss returns the error for a client whose console connection failed with err. A client connects again
// after "unavailable", since the process that follows a machine may end while the machine runs on. Errors with
// another meaning for the client are returned unchanged.
func explainConsoleLoss(err error) error {
	_, isKnown := errors.AsType[*apierrors.StatusError](err)
	for _, cause := range []error{errClientLeft, errFinished, driver.ErrConsoleTaken, driver.ErrUnsupported} {
		isKnown = isKnown || errors.Is(err, cause)
	}
	if isKnown {
		return err
	}
	return unavailableError("the console was lost: %v", err)
}

// streamEnds has the errors with which a stream ends when its connection to the server ends.
type streamEnds struct {
	// atEOF is the error after all of the connection was read.
	atEOF error
	// onError returns the error after the connection has failed.
	onError func(error) error
}

// serveConnection opens a connection to the server, then the WebSocket of the client, and copies between the two.
func (c *call) serveConnection(open func() (io.ReadWriteCloser, error), ends streamEnds) error {
	if err := checkHandshake(c.r, c.stream); err != nil {
		return err
	}
	conn, err := open()
	if err != nil {
		return err
	}
	closeOnce := sync.OnceFunc(func() { _ = conn.Close() })
	context.AfterFunc(c.ctx, closeOnce)
	defer closeOnce()
	return c.serveWebSocket(func(s *session) error { return s.copyConnection(conn, ends) })
}
