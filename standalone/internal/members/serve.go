// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"cloudnative.tw/drover/internal/login"
)

const (
	// certificateLife is how long a certificate is valid.
	certificateLife = time.Hour
	// requestWithin is how long a client may take to send its request, and to take the answer.
	requestWithin = 5 * time.Second
	// maxConnections are served at a time, of one user at most maxPerUser.
	maxConnections = 8
	maxPerUser     = 2
	// usersGroup is the group of all users with a certificate of this package.
	usersGroup = "drover:users"
	// userPrefix begins the names of these users in the API. No other credentials have such names.
	userPrefix = "unix:"
)

// acceptConnections serves connections until the listener is closed.
func (s *Server) acceptConnections(ctx context.Context, listener *net.UnixListener) {
	for {
		conn, err := listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // such as too many open files
			s.Clock.Sleep(time.Second)
			continue
		}
		uid, err := peerOf(conn)
		if err != nil {
			_ = conn.Close()
			continue
		}
		if !s.shares.take(uid) {
			s.sendAnswer(conn, login.Answer{Busy: true, Error: "the Drover service has too many logins at a time: try again"})
			continue
		}
		s.serving.Go(func() {
			defer s.shares.release(uid)
			s.sendAnswer(conn, s.answerTo(ctx, conn, uid))
		})
	}
}

// peerOf returns the user at the other end, by the kernel.
func peerOf(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, peerErr); err != nil {
		return 0, err
	}
	return peer.Uid, nil
}

// sendAnswer sends an answer and closes the connection. A client that has left needs no answer.
func (s *Server) sendAnswer(conn *net.UnixConn, answer login.Answer) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetWriteDeadline(s.Clock.Now().Add(requestWithin))
	_ = json.NewEncoder(conn).Encode(answer)
}

// answerTo returns the answer to the request on a connection.
func (s *Server) answerTo(ctx context.Context, conn *net.UnixConn, uid uint32) login.Answer {
	_ = conn.SetReadDeadline(s.Clock.Now().Add(requestWithin))
	key, err := readKey(conn)
	if err != nil {
		return login.Answer{Error: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	certificate, err := s.logIn(ctx, uid, key)
	if _, refused := errors.AsType[*refusal](err); err != nil && !refused {
		klog.FromContext(ctx).Error(err, "Could not answer a login", "uid", uid)
		return login.Answer{Error: "the Drover service could not check or grant the access of this user, and its log says why: try again later"}
	}
	if err != nil {
		klog.FromContext(ctx).Info("Login refused", "uid", uid, "reason", err.Error())
		return login.Answer{Error: err.Error()}
	}
	return login.Answer{Certificate: string(certificate)}
}

// readKey reads a request, and returns its public key. The signature proves that the client has the private key.
func readKey(conn io.Reader) (*ecdsa.PublicKey, error) {
	request, err := io.ReadAll(io.LimitReader(conn, login.MaxRequest+1))
	if err != nil {
		return nil, fmt.Errorf("the request did not come within %s", requestWithin)
	}
	if len(request) > login.MaxRequest {
		return nil, fmt.Errorf("the request has more than %d bytes", login.MaxRequest)
	}
	parsed, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, errors.New("the request is not a certificate request (PKCS #10)")
	}
	key, ok := parsed.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() || parsed.CheckSignature() != nil {
		return nil, errors.New("the request must have a key of ECDSA on P-256, and its signature")
	}
	return key, nil
}

// logIn gives a member access and returns a certificate.
func (s *Server) logIn(ctx context.Context, uid uint32, key *ecdsa.PublicKey) ([]byte, error) {
	m, err := s.findMember(uid)
	if err != nil {
		return nil, err
	}
	if err := s.grantAccess(ctx, m); err != nil {
		return nil, err
	}
	certificate, err := s.Sign(pkix.Name{
		CommonName: m.apiName(), Organization: []string{usersGroup}, OrganizationalUnit: []string{m.namespace()},
	}, key, certificateLife)
	if err == nil {
		klog.FromContext(ctx).Info("Certificate issued", "user", m.apiName(), "uid", uid, "namespace", m.namespace())
	}
	return certificate, err
}

// refusal is an error that the user may see.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func newRefusal(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// shares counts the connections of users.
type shares struct {
	mu    sync.Mutex
	total int
	users map[uint32]int
}

// take reserves a connection for a user, unless all are taken, or as many as one user may have.
func (s *shares) take(uid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total >= maxConnections || s.users[uid] >= maxPerUser {
		return false
	}
	if s.users == nil {
		s.users = map[uint32]int{}
	}
	s.total++
	s.users[uid]++
	return true
}

func (s *shares) release(uid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.users[uid]--; s.users[uid] == 0 {
		delete(s.users, uid)
	}
}
