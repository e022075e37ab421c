// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"os"
)

// serviceManager is the socket on which systemd waits for this service to be ready; empty for none (sd_notify(3)).
type serviceManager string

// takeServiceManager removes the socket from the environment: kube-apiserver would report there that it is ready, before
// VirtualMachines are served.
func takeServiceManager() serviceManager {
	const variable = "NOTIFY_SOCKET"
	socket := os.Getenv(variable)
	_ = os.Unsetenv(variable)
	return serviceManager(socket)
}

// notify sends a state such as READY=1.
func (m serviceManager) notify(state string) error {
	if m == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: string(m), Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return errors.Join(err, conn.Close())
}
