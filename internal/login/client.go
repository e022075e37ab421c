// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"time"

	"k8s.io/utils/clock"
)

const (
	// answerWithin is how long the service may take for an answer. A directory of users may be slow.
	answerWithin = 40 * time.Second
	// busyWithin is how long a client tries again while the service is busy, and busyPause the time between two tries.
	busyWithin = 20 * time.Second
	busyPause  = 200 * time.Millisecond
	maxAnswer  = 64 << 10
)

// Client logs in at the service of this host.
type Client struct {
	// Dir is the folder of the service.
	Dir string
	// RuntimeDir is the folder for files of the user until logout, XDG_RUNTIME_DIR. Nothing is cached without it.
	RuntimeDir string
	Clock      clock.Clock
}

// NewClient returns a client for the user of this process.
func NewClient(getenv func(string) string, c clock.Clock) *Client {
	return &Client{Dir: Dir(getenv), RuntimeDir: getenv("XDG_RUNTIME_DIR"), Clock: c}
}

// Obtain returns the credentials in the cache, or else new ones.
func (c *Client) Obtain() (*Credentials, error) {
	config, err := c.readKubeconfig()
	if err != nil {
		return nil, err
	}
	begin := c.Clock.Now()
	for {
		if cached := c.readCache(); cached != nil && cached.isUsable(c.Clock.Now(), config.authority()) {
			return cached, nil
		}
		made, err := c.logIn()
		if _, busy := errors.AsType[*busyError](err); busy && c.Clock.Since(begin) < busyWithin {
			c.Clock.Sleep(busyPause)
			continue
		}
		if err == nil {
			c.writeCache(made)
		}
		return made, err
	}
}

// busyError means that the service has too many requests now.
type busyError struct{ text string }

func (e *busyError) Error() string { return e.text }

// logIn makes a key and has the service sign a certificate for it. The key never leaves this user's processes.
func (c *Client) logIn() (*Credentials, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	answer, err := c.sendRequest(request)
	switch {
	case err != nil:
		return nil, err
	case answer.Busy:
		return nil, &busyError{answer.Error}
	case answer.Error != "":
		return nil, errors.New(answer.Error)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return parseCredentials([]byte(answer.Certificate), pem.EncodeToMemory(&pem.Block{Type: keyType, Bytes: der}))
}

// sendRequest sends a request and reads its answer.
func (c *Client) sendRequest(request []byte) (answer Answer, err error) {
	path := SocketPath(c.Dir)
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return answer, explainDial(path, err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(c.Clock.Now().Add(answerWithin)); err != nil {
		return answer, err
	}
	_, err = conn.Write(request)
	if err == nil {
		err = conn.CloseWrite()
	}
	// A service that refuses a request without reading it still answers.
	text, readErr := io.ReadAll(io.LimitReader(conn, maxAnswer))
	if len(text) > 0 {
		err = json.Unmarshal(text, &answer)
	} else {
		err = errors.Join(err, readErr, io.ErrUnexpectedEOF)
	}
	if err != nil {
		return answer, fmt.Errorf("log in at %s: %w", path, err)
	}
	return answer, nil
}

func explainDial(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("only members of group %s may use this host's Drover, by %s: have root run adduser %s %s, then begin a new session", Group, path, userOrID(), Group)
	}
	return fmt.Errorf("the Drover service of this host does not answer: see systemctl status drover: %w", err)
}

// userOrID returns the user for a message. USER may be another one's name after sudo.
func userOrID() string {
	if name := os.Getenv("USER"); name != "" && os.Getenv("SUDO_USER") == "" {
		return name
	}
	return "NAME"
}
