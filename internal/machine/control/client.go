// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gorilla/websocket"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
)

const (
	// connectWithin limits the time to connect, and then the time of the TLS handshake.
	connectWithin = 5 * time.Second
	// maxAnswer, maxRequest and maxHeader limit how many bytes are read from the other end.
	maxAnswer, maxRequest, maxHeader = 64 << 10, 64 << 10, 8 << 10
)

// Paths of the calls.
const (
	statusPath = "/v1/status"
	pausePath  = "/v1/pause"
	resumePath = "/v1/resume"
	probePath  = "/v1/probe"
	growPath   = "/v1/grow"
	gracePath  = "/v1/grace-period"
)

// Client controls a machine. Each call opens a connection, since there may be thousands of machines
// and calls are rare.
type Client struct {
	http   http.Client
	dialer websocket.Dialer
	base   string
	header http.Header // sent with each request
	token  string      // "" for a machine on another host
}

var _ Machine = (*Client)(nil)

// NewClient returns a client of the machine at an address with a port. config is from
// Credentials.ClientConfig: the machine must prove its name, since another pod may have taken over the
// address.
func NewClient(address string, config *tls.Config) *Client {
	dial := (&net.Dialer{Timeout: connectWithin}).DialContext
	return &Client{
		base: "https://" + address,
		http: http.Client{
			Transport: &http.Transport{
				DialContext: dial, TLSHandshakeTimeout: connectWithin,
				TLSClientConfig: config, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		dialer: websocket.Dialer{
			NetDialContext: dial, TLSClientConfig: config, HandshakeTimeout: CallWithin,
			ReadBufferSize: terminal.ChunkSize, WriteBufferSize: 4 << 10,
		},
	}
}

// Status implements Machine.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	if err := c.makeCall(ctx, http.MethodGet, statusPath, nil, &s); err != nil {
		return Status{}, err
	}
	if !s.isValid() {
		return Status{}, failure.ErrProtocol
	}
	if s.IsSilent {
		return s, failure.ErrFailed
	}
	return s, nil
}

// isValid reports whether a status has only known values, readable texts and positive numbers.
func (s *Status) isValid() bool {
	figures := []int64{s.CPUNanoseconds, s.MemoryBytes, s.GuestMemoryBytes}
	if s.Copied != nil {
		figures = append(figures, s.Copied.Bytes, s.Copied.TotalBytes)
	}
	return slices.Contains([]State{StateStarting, StateRunning, StatePaused, StateStopping}, s.State) &&
		slices.Contains([]Wait{WaitNone, WaitRoom, WaitDisk}, s.Waits) &&
		readableText.MatchString(s.RunState) && readableText.MatchString(s.Fault.Node) && readableText.MatchString(s.Fault.Operation) && readableText.MatchString(s.Fault.Reason) &&
		slices.Contains([]string{"", "kvm", "tcg"}, s.Accelerator) && slices.Min(figures) >= 0 &&
		areValid(s.ServedPorts)
}

// readableText matches texts of a status that are safe to show to people.
var readableText = regexp.MustCompile(`^[A-Za-z0-9 /_()-]{0,100}$`)

// Pause implements Machine.
func (c *Client) Pause(ctx context.Context) error {
	return c.makeCall(ctx, http.MethodPost, pausePath, nil, nil)
}

// Resume implements Machine.
func (c *Client) Resume(ctx context.Context) error {
	return c.makeCall(ctx, http.MethodPost, resumePath, nil, nil)
}

// Probe implements Machine. The machine waits for the guest as long as ctx allows.
func (c *Client) Probe(ctx context.Context, port int32) error {
	return c.makeCall(ctx, http.MethodPost, probePath+"?port="+strconv.Itoa(int(port)), nil, nil)
}

// Grow implements Machine.
func (c *Client) Grow(ctx context.Context, sizes Sizes) (grown Sizes, err error) {
	err = c.makeCall(ctx, http.MethodPost, growPath, sizes, &grown)
	return grown, err
}

// SetGracePeriod implements Machine.
func (c *Client) SetGracePeriod(ctx context.Context, period time.Duration) error {
	return c.makeCall(ctx, http.MethodPost, gracePath+"?seconds="+strconv.FormatInt(int64(period/time.Second), 10), nil, nil)
}

// makeCall makes a request with in as its body, and decodes the answer into out. Both may be nil.
func (c *Client) makeCall(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, CallWithin+2*connectWithin)
	defer cancel()
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, &body)
	if err != nil {
		return err
	}
	maps.Copy(request.Header, c.header)
	response, err := c.http.Do(request)
	if err != nil {
		return explainError(err)
	}
	defer func() { _ = response.Body.Close() }()
	return readAnswer(response, out)
}

// readAnswer decodes the answer to a call into out, which may be nil.
func readAnswer(response *http.Response, out any) error {
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case err != nil:
		return explainError(err)
	case response.StatusCode == http.StatusUnprocessableEntity:
		_, err := readOutcome(content)
		return cmp.Or(err, failure.ErrProtocol)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%w: status %d", failure.ErrProtocol, response.StatusCode)
	case out != nil && json.Unmarshal(content, out) != nil:
		return failure.ErrProtocol
	}
	return nil
}

// explainError returns why a call failed. It drops all text of the other end.
func explainError(err error) error {
	_, isCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	operation, isOperation := errors.AsType[*net.OpError](err)
	timeout, isNet := errors.AsType[net.Error](err)
	code, isSystem := errors.AsType[syscall.Errno](err)
	switch {
	case isCertificate, isOperation && strings.HasSuffix(operation.Op, " error"): // "remote error" is a TLS alert
		return failure.ErrIdentity
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %w", failure.ErrUnreachable, context.Canceled)
	case errors.Is(err, context.DeadlineExceeded), isNet && timeout.Timeout():
		return fmt.Errorf("%w: %w", failure.ErrUnreachable, context.DeadlineExceeded)
	case isSystem:
		return fmt.Errorf("%w: %w", failure.ErrUnreachable, code)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), websocket.IsCloseError(err, websocket.CloseAbnormalClosure):
		return fmt.Errorf("%w: the machine closed the connection", failure.ErrUnreachable)
	}
	return failure.ErrProtocol
}
