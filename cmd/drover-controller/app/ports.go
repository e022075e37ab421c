// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"net"
	"syscall"

	ctrl "sigs.k8s.io/controller-runtime"
)

// addressOff is the address that turns an endpoint off.
const addressOff = "0"

// address is the flag of an address to listen on. It records whether it is explicit:
// set by the flag or by an environment variable. An endpoint whose default address is
// in use is skipped; an explicit address that is in use is an error.
type address struct {
	value    *string
	explicit *bool
}

// String implements pflag.Value.
func (a address) String() string {
	if a.value == nil {
		return ""
	}
	return *a.value
}

// Set implements pflag.Value.
func (a address) Set(value string) error {
	*a.value, *a.explicit = value, true
	return nil
}

// Type implements pflag.Value.
func (a address) Type() string { return "string" }

// skipAddressesInUse turns off endpoints whose default address is in use, so that replicas can
// share a host without flags.
func (o *Options) skipAddressesInUse(ctx context.Context) error {
	for _, e := range []struct {
		flag       string
		address    *string
		isExplicit bool
	}{{"--metrics-bind-address", &o.MetricsAddress, o.explicit.metrics || o.MetricsSecure}, {"--health-probe-bind-address", &o.HealthAddress, o.explicit.health}} {
		if e.isExplicit || *e.address == addressOff {
			continue
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *e.address)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			ctrl.Log.Info("Warning: endpoint left out: another process has its default address. Set a free one to serve it", "address", *e.address, "flag", e.flag)
			*e.address = addressOff
		case err != nil:
			return err
		default:
			_ = listener.Close()
		}
	}
	return nil
}
