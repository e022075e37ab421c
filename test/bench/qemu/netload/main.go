// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command netload is the server and the client of the measurements of suite network.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"time"
)

// The first byte of a connection, which is followed by a size in bytes.
const (
	download = 'd' // the server sends data of this size
	upload   = 'u' // the client sends data of this size, and the server answers with one byte
	echo     = 'e' // the server sends back every byte
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "netload:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "serve" {
		return serve()
	}
	if len(args) != 3 {
		return errors.New("usage: netload serve | down ADDRESS BYTES | up ADDRESS BYTES | ask ADDRESS TIMES | connect ADDRESS TIMES")
	}
	size, err := strconv.ParseUint(args[2], 10, 63)
	if err != nil {
		return err
	}
	do := map[string]func(string, uint64) (float64, error){"down": transfer(download), "up": transfer(upload), "ask": ask, "connect": connect}[args[0]]
	if do == nil {
		return fmt.Errorf("there is no command %q", args[0])
	}
	figure, err := do(args[1], size)
	if err == nil {
		fmt.Println(figure)
	}
	return err
}

func serve() error {
	listener, err := net.Listen("tcp", ":80") //nolint:gosec,noctx // it ends with its guest
	if err != nil {
		return err
	}
	fmt.Println("netload serves")
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = conn.Close() }()
			_ = answer(conn)
		}()
	}
}

func answer(conn net.Conn) error {
	head := make([]byte, 9)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint64(head[1:])) //nolint:gosec // of a client of this program
	switch head[0] {
	case download:
		return send(conn, size)
	case upload:
		if err := receive(conn, size); err != nil {
			return err
		}
		_, err := conn.Write(head[:1])
		return err
	}
	_, err := io.Copy(conn, conn)
	return err
}

func open(address string, what byte, size uint64) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", address, time.Minute) //nolint:noctx // it has a limit
	if err != nil {
		return nil, err
	}
	_, err = conn.Write(binary.BigEndian.AppendUint64([]byte{what}, size))
	return conn, err
}

// block is the amount of data that is sent and received at a time.
const block = 256 << 10

func send(to io.Writer, size int64) error {
	data := make([]byte, block)
	for ; size > 0; size -= block {
		if _, err := to.Write(data[:min(size, block)]); err != nil {
			return err
		}
	}
	return nil
}

func receive(from io.Reader, size int64) error {
	data := make([]byte, block)
	for size > 0 {
		n, err := from.Read(data)
		if size -= int64(n); err != nil && size > 0 {
			return err
		}
	}
	return nil
}

// transfer returns a function that measures a transfer in MB/s.
func transfer(what byte) func(string, uint64) (float64, error) {
	return func(address string, size uint64) (float64, error) {
		conn, err := open(address, what, size)
		if err != nil {
			return 0, err
		}
		defer func() { _ = conn.Close() }()
		begin := time.Now()
		if what == download {
			err = receive(conn, int64(size)) //nolint:gosec // 63 bits
		} else if err = send(conn, int64(size)); err == nil { //nolint:gosec // 63 bits
			err = receive(conn, 1)
		}
		return float64(size) / 1e6 / time.Since(begin).Seconds(), err
	}
}

// ask returns the median duration of requests on an open connection, in ms.
func ask(address string, times uint64) (float64, error) {
	conn, err := open(address, echo, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	return median(times, func() error { return request(conn) })
}

// connect returns the median duration of opening a connection and sending a request, in ms.
func connect(address string, times uint64) (float64, error) {
	return median(times, func() error {
		conn, err := open(address, echo, 0)
		if err != nil {
			return err
		}
		return errors.Join(request(conn), conn.Close())
	})
}

func request(conn net.Conn) error {
	if _, err := conn.Write([]byte{echo}); err != nil {
		return err
	}
	return receive(conn, 1)
}

func median(times uint64, do func() error) (float64, error) {
	var all []float64
	for range times {
		begin := time.Now()
		if err := do(); err != nil {
			return 0, err
		}
		all = append(all, float64(time.Since(begin).Microseconds())/1e3)
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}
