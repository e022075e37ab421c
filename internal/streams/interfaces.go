// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"encoding/json"

	"cloudnative.tw/drover/internal/driver"
)

// serveInterfaces responds with the network interfaces that the server sees.
func (c *call) serveInterfaces() error {
	lister, err := offered[driver.InterfaceLister](c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.times.open)
	defer cancel()
	list, err := lister.Interfaces(ctx, c.vm.UID)
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
