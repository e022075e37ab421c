// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package boot

import (
	"bytes"
	"os"
	"time"
)

// maxBehind is how many chunks the console may be behind the output. It is slow: 200 KB a second.
const maxBehind = 8

// flushWithin is how long the end of the machine waits for the console.
const flushWithin = time.Second

// console copies output to the serial console, and leaves out what that is too slow for.
type console struct {
	chunks chan []byte
	done   chan struct{}
	// lost is set while a chunk was left out and not yet said to be.
	lost bool
}

// newConsole returns nil where nothing is to be copied.
func newConsole(isWanted bool) *console {
	if !isWanted {
		return nil
	}
	c := &console{chunks: make(chan []byte, maxBehind), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for p := range c.chunks {
			_, _ = os.Stderr.Write(p)
		}
	}()
	return c
}

var leftOut = []byte("\ndrover-guest: output is left out here, the log has all of it\n")

// add adds output, or leaves it out.
func (c *console) add(p []byte) {
	if c == nil {
		return
	}
	text := bytes.Clone(p)
	if c.lost {
		text = append(bytes.Clone(leftOut), text...)
	}
	select {
	case c.chunks <- text:
		c.lost = false
	default:
		c.lost = true
	}
}

// flush waits for what has been added.
func (c *console) flush() {
	if c == nil {
		return
	}
	close(c.chunks)
	within(flushWithin, func() { <-c.done })
}
