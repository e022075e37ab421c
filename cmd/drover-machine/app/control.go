// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"cloudnative.tw/drover/internal/machine/control"
)

// serveControl serves the control port of the description, if it has one, until ctx ends.
func (r *run) serveControl(ctx context.Context) error {
	if r.description.Control == nil {
		return nil
	}
	credentials, err := control.ReadCredentials(r.description.Control.Folder)
	if err != nil {
		return fmt.Errorf("control.folder: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(int(r.description.Control.Port)))
	if err != nil {
		return fmt.Errorf("control.port: %w", err)
	}
	server, err := control.NewServer(ctx, credentials, controlledMachine{r.supervisor, r}, r.supervisor.Guest())
	if err != nil {
		return fmt.Errorf("control.folder: %w", errors.Join(err, listener.Close()))
	}
	go func() {
		if err := server.Serve(listener); err != nil && ctx.Err() == nil {
			r.log.Error(err, "Control port has failed, so the machine cannot be controlled any more")
		}
	}()
	return nil
}
