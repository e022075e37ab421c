// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"io"
	"math"

	"cloudnative.tw/drover/internal/driver"
)

// servePort connects the client with a TCP port of the server until the server closes the connection.
func (c *call) servePort() error {
	dialer, err := capability[driver.Dialer](c)
	if err != nil {
		return err
	}
	p := parameters{Values: c.r.URL.Query()}
	port := p.readNumber("port", 1, math.MaxUint16)
	switch {
	case p.err != nil:
		return p.err
	case port == nil:
		return badRequest("parameter port is missing: it must be a number from 1 to %d", math.MaxUint16)
	}
	return c.serveConnection(func() (io.ReadWriteCloser, error) {
		ctx, cancel := context.WithTimeout(c.ctx, c.times.open)
		defer cancel()
		return dialer.Dial(ctx, c.vm.UID, int32(*port)) //nolint:gosec // it is at most 65535
	}, streamEnds{onError: func(err error) error { return err }})
}
