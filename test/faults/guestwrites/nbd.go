// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guestwrites

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/failover/processlog"
)

// Numbers of the NBD protocol, https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md.
const (
	helloMagic   = 0x4e42444d41474943 // "NBDMAGIC"
	optionMagic  = 0x49484156454f5054 // "IHAVEOPT"
	answerMagic  = 0x0003e889045565a9
	requestMagic = 0x25609513
	replyMagic   = 0x67446698

	fixedNewstyle, noZeroes = 1, 2

	optionAbort, optionGo         = 2, 7
	answerAck, answerInfo         = 1, 3
	answerUnsupported, infoExport = 1<<31 | 1, 0

	commandRead, commandWrite, commandDisconnect, commandFlush, commandTrim, commandZero = 0, 1, 2, 3, 4, 6

	flagFUA = 1
	// exportFlags say that the server supports flushes, FUA, TRIM, WRITE_ZEROES and FAST_ZERO.
	exportFlags = 1 | 1<<2 | 1<<3 | 1<<5 | 1<<6 | 1<<11

	errorIO, errorInvalid = 5, 22
)

const (
	// exportSize is the size of each export, larger than its file ever is: QEMU cannot grow a disk of
	// NBD.
	exportSize = 4 << 30
	// maxLength is an upper bound of the length of QEMU's writes.
	maxLength = 64 << 20
)

// header is the header of a request of QEMU.
type header struct {
	Magic          uint32
	Flags, Command uint16
	Handle, Offset uint64
	Length         uint32
}

// request is a request of QEMU.
type request struct {
	header
	data []byte
	// written is how many writes had been answered when the request was received.
	written int
}

// device is the disk that a connection uses. Its methods are called one at a time.
type device interface {
	io.ReaderAt
	io.Closer
	// Write writes data, or zeros of that length if data is nil. isSynced is set for a write
	// that is durable once it is answered.
	Write(data []byte, offset, length int64, isSynced bool) error
	// Flush makes the first writes durable.
	Flush(written int) error
}

// nbdServer serves disks by the NBD protocol. It connects to the programs that request connections, because a confined
// QEMU cannot connect to the server.
type nbdServer struct {
	reports *os.File
	open    func(export string) (device, error)
	ended   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	errs  []error
}

// startNBDServer starts a server for program attach at a path.
func startNBDServer(program string, open func(export string) (device, error)) (*nbdServer, error) {
	reports, err := processlog.OpenReports(program)
	if err != nil {
		return nil, err
	}
	s := &nbdServer{reports: reports, open: open, conns: map[net.Conn]bool{}}
	s.ended.Go(s.readReports)
	return s, nil
}

// readReports opens connections to programs. A report has a PID and the number of connections that it needs.
func (s *nbdServer) readReports() {
	for reports := json.NewDecoder(s.reports); ; {
		var report [2]int
		if reports.Decode(&report) != nil {
			return
		}
		pid, connections := report[0], report[1]
		var err error
		for range connections {
			var conn net.Conn
			if conn, err = net.Dial("unix", fmt.Sprintf("/proc/%d/cwd/%s", pid, machine.NetworkSocket)); err != nil { //nolint:noctx // at once
				break
			}
			s.add(conn)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the process still exists
			s.noteError(err)
		}
	}
}

// add serves a connection.
func (s *nbdServer) add(conn net.Conn) {
	s.mu.Lock()
	s.conns[conn] = true
	s.mu.Unlock()
	s.ended.Go(func() {
		err := s.serve(conn)
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
		if err = errors.Join(err, conn.Close()); err != nil && !isDisconnect(err) {
			s.noteError(err)
		}
	})
}

func (s *nbdServer) noteError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, err)
}

// isDisconnect reports whether an error comes from a QEMU that was killed.
func isDisconnect(err error) bool {
	return errors.Is(err, errPowerCut) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, new(*net.OpError))
}

// close ends all connections, and returns the errors so far.
func (s *nbdServer) close() error {
	err := s.reports.Close()
	s.mu.Lock()
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.ended.Wait()
	return errors.Join(append(s.errs, err)...)
}

// connection is a connection with its export.
type connection struct {
	net.Conn
	device device

	mu      sync.Mutex
	written int // writes that were answered
}

func (s *nbdServer) serve(conn net.Conn) error {
	d, err := s.negotiate(conn)
	if d == nil || err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	c := &connection{Conn: conn, device: d}
	requests := make(chan request, 1000)
	var received error
	go func() {
		defer close(requests)
		received = c.receive(requests)
	}()
	for r := range requests {
		if err := c.answer(r); err != nil {
			_ = conn.Close()
			for range requests { // until receive has ended
			}
			return err
		}
	}
	return received
}

// negotiate lets the client choose an export. It returns nil if the client aborts.
func (s *nbdServer) negotiate(conn net.Conn) (device, error) {
	var flags uint32
	if err := send(conn, uint64(helloMagic), uint64(optionMagic), uint16(fixedNewstyle|noZeroes)); err != nil {
		return nil, err
	}
	if err := binary.Read(conn, binary.BigEndian, &flags); err != nil {
		return nil, err
	}
	for {
		var option struct {
			Magic          uint64
			Option, Length uint32
		}
		if err := binary.Read(conn, binary.BigEndian, &option); err != nil {
			return nil, err
		}
		if option.Magic != optionMagic || option.Length > maxLength {
			return nil, fmt.Errorf("an NBD client sent the option %+v", option)
		}
		data := make([]byte, option.Length)
		if _, err := io.ReadFull(conn, data); err != nil {
			return nil, err
		}
		switch option.Option {
		case optionGo:
			return s.chooseExport(conn, data)
		case optionAbort:
			return nil, send(conn, uint64(answerMagic), option.Option, uint32(answerAck), uint32(0))
		}
		if err := send(conn, uint64(answerMagic), option.Option, uint32(answerUnsupported), uint32(0)); err != nil {
			return nil, err
		}
	}
}

// chooseExport opens the export that the data of NBD_OPT_GO names.
func (s *nbdServer) chooseExport(conn net.Conn, data []byte) (device, error) {
	var length uint32
	if err := binary.Read(bytes.NewReader(data), binary.BigEndian, &length); err != nil || int64(length)+4 > int64(len(data)) {
		return nil, fmt.Errorf("an NBD client requested the export %q", data)
	}
	d, err := s.open(string(data[4 : 4+length]))
	if err != nil {
		return nil, err
	}
	return d, send(conn,
		uint64(answerMagic), uint32(optionGo), uint32(answerInfo), uint32(12), uint16(infoExport), uint64(exportSize), uint16(exportFlags),
		uint64(answerMagic), uint32(optionGo), uint32(answerAck), uint32(0))
}

// send sends numbers in one write.
func send(w io.Writer, numbers ...any) error {
	var out bytes.Buffer
	for _, n := range numbers {
		if err := binary.Write(&out, binary.BigEndian, n); err != nil {
			return err
		}
	}
	_, err := w.Write(out.Bytes())
	return err
}

// receive receives requests until the client ends the connection. It reads a request as soon as it
// arrives, in order to know which writes had been answered by then.
func (c *connection) receive(requests chan<- request) error {
	for {
		var r request
		if err := binary.Read(c, binary.BigEndian, &r.header); err != nil {
			return err
		}
		c.mu.Lock()
		r.written = c.written
		c.mu.Unlock()
		isLong := r.Length > maxLength && (r.Command == commandRead || r.Command == commandWrite)
		if r.Magic != requestMagic || isLong || r.Offset+uint64(r.Length) > exportSize {
			return fmt.Errorf("an NBD client sent the request %+v", r)
		}
		switch r.Command {
		case commandDisconnect:
			return nil
		case commandWrite:
			r.data = make([]byte, r.Length)
			if _, err := io.ReadFull(c, r.data); err != nil {
				return err
			}
		}
		requests <- r
	}
}

// answer carries out a request and answers it.
func (c *connection) answer(r request) error {
	var data []byte
	err := errors.ErrUnsupported
	offset, length := int64(r.Offset), int64(r.Length) //nolint:gosec // below exportSize
	switch r.Command {
	case commandRead:
		data = make([]byte, length)
		_, err = c.device.ReadAt(data, offset)
	case commandWrite, commandTrim, commandZero:
		err = c.device.Write(r.data, offset, length, r.Flags&flagFUA != 0)
		c.mu.Lock()
		c.written++ // before the client can have the answer
		c.mu.Unlock()
	case commandFlush:
		err = c.device.Flush(r.written)
	}
	switch {
	case errors.Is(err, errPowerCut):
		return err
	case errors.Is(err, errors.ErrUnsupported):
		return send(c, uint32(replyMagic), uint32(errorInvalid), r.Handle)
	case err != nil:
		return errors.Join(err, send(c, uint32(replyMagic), uint32(errorIO), r.Handle))
	}
	return send(c, uint32(replyMagic), uint32(0), r.Handle, data)
}
