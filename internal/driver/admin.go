// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import "context"

// Admin gives command line tools access to one cluster's servers on an engine that controllers
// may be using. It needs no right to act, because it changes only servers that no controller
// touches.
type Admin interface {
	// Survey returns the engine and all of the cluster's servers, the released ones included.
	// It creates and records nothing, unlike List of some drivers, so it may run as another
	// user than the controller. State is StateRunning or StateStopped where only the server
	// itself could tell more.
	//
	// Errors: ErrUnavailable for an engine that does not answer.
	Survey(ctx context.Context) (Survey, error)

	// RemoveRetained ends and removes a server that was released, with all that belongs to
	// it. The target has both its UID and its ID. No controller acts on such a server, so no
	// epoch is compared.
	//
	// Errors: ErrNotFound if no released server of the cluster has that UID and ID, and
	// ErrRetry if another caller is changing it.
	RemoveRetained(ctx context.Context, t Target) error
}

// Survey is the result of Admin.Survey.
type Survey struct {
	// EngineID is the engine's lasting identity. Version is the version of its program, empty
	// if there is no program.
	EngineID, Version string
	Servers           []Server
}
