// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"encoding/json"

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
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	c.answered = true
	setHeader(c.w, "application/json")
	_, err = body{c}.Write(text)
	return err
}
