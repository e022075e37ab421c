// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import "context"

// Admin is an engine as command line tools see it, beside the controllers that use it. It
// knows one cluster's servers. It needs no right to act, because it changes only what no
// controller touches.
type Admin interface {
	// Survey returns the engine and all of the cluster's servers, the released ones included.
	// It creates and records nothing, unlike List of some drivers, so its caller may be
	// another user than the controller's. State is StateRunning or StateStopped where only a
	// question to the server itself would tell more.
	//
	// Errors: ErrUnavailable for an engine that does not answer.
	Survey(ctx context.Context) (Survey, error)

	// RemoveRetained ends and removes a server that was released, with all that belongs to
	// it. The target has both its UID and its ID. No controller acts on such a server, so no
	// epoch is compared.
	//
	// Errors: ErrNotFound if the cluster has no released server with that UID and ID, and
	// ErrRetry if another caller is changing it.
	RemoveRetained(ctx context.Context, t Target) error
}

// Survey is what Admin.Survey finds.
type Survey struct {
	// EngineID is the engine's lasting identity, and Version that of its program, if there is
	// one.
	EngineID, Version string
	Servers           []Server
}
