// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"net/http"

	"cloudnative.tw/drover/internal/driver"
)

// serveInterfaces responds with the network interfaces that the server sees.
func (c *call) serveInterfaces() error {
	lister, err := offered[driver.InterfaceLister](c)
	if err != nil {
		return err
	}
	list, err := within(c, func() ([]driver.Interface, error) { return lister.Interfaces(c.ctx, c.vm.UID) })
	if err != nil {
		return err
	}
	if list == nil {
		list = []driver.Interface{}
	}
	c.answered = true
	c.respond(http.StatusOK, list)
	return nil
}
