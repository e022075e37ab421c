// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"cloudnative.tw/drover/internal/image/catalogue"
	"cloudnative.tw/drover/internal/image/compression"
	"cloudnative.tw/drover/internal/image/egress"
	"cloudnative.tw/drover/internal/image/layer"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/image/transfer"
)

// DefaultMaxSize is the default of Policy.MaxSize.
const DefaultMaxSize = 32 << 30

// Policy says which fetches the operator allows. The zero value allows public addresses,
// and registries only over TLS.
type Policy struct {
	// Hosts are names and CIDRs of hosts that may be contacted although their addresses are
	// not public.
	Hosts []string
	// PlainHTTP are registries, as sources name them, that are contacted without TLS and
	// without logins.
	PlainHTTP []string
	// MaxSize is how many bytes an image may have, both as sent and decompressed; zero means
	// DefaultMaxSize.
	MaxSize int64
	// Catalogue is a file with names of cloud images, in addition to catalogue.Shipped.
	Catalogue string
	// BuiltIn is the file of the built-in image, in the format of docker save.
	BuiltIn string
}

// Sources fetches from the sources that a Policy allows.
type Sources struct {
	client    *egress.Client
	catalogue *catalogue.Catalogue
	plainHTTP []string
	limit     transfer.Limit
	builtIn   string
}

// NewSources returns the sources that a policy allows.
func NewSources(p Policy) (*Sources, error) {
	hosts, err := egress.ParseHosts(p.Hosts)
	if err != nil {
		return nil, fmt.Errorf("--image-hosts: %w", err)
	}
	for _, registry := range p.PlainHTTP {
		if _, err := name.NewRegistry(registry, name.StrictValidation); err != nil || registry != strings.ToLower(registry) {
			return nil, fmt.Errorf("--image-plain-http-registries has %q: each entry must be the lowercase host of a registry, with its port if it has one, such as localhost:5000", registry)
		}
	}
	if p.MaxSize < 0 {
		return nil, fmt.Errorf("--image-max-size is %d: it must be more than 0", p.MaxSize)
	}
	if p.MaxSize == 0 {
		p.MaxSize = DefaultMaxSize
	}
	names, err := catalogue.Open(p.Catalogue)
	if err != nil {
		return nil, fmt.Errorf("--image-catalogue: %w", err)
	}
	return &Sources{client: egress.New(hosts), catalogue: names, plainHTTP: p.PlainHTTP, limit: transfer.Limit{Bytes: p.MaxSize, Option: "--image-max-size"}, builtIn: p.BuiltIn}, nil
}

// IsUnchecked reports whether nothing protects the content of an image: a web server, or
// someone who changes the traffic on the way, decides what is fetched. The content from a
// registry is checked by digests, which TLS protects on the way.
func (s *Sources) IsUnchecked(ref Ref) bool {
	switch {
	case ref.Checksum != "":
		return false
	case ref.Source.Kind == source.Web:
		return true
	case ref.Source.Kind != source.RegistryDisk && ref.Source.Kind != source.Container:
		return false // an image of the catalogue has the checksum of its publisher
	}
	parsed, err := name.ParseReference(ref.Source.Name)
	if err != nil {
		return false // the fetch will fail
	}
	_, byDigest := parsed.(name.Digest)
	return !byDigest && s.isPlainHTTP(parsed)
}

// isPlainHTTP reports whether a registry is contacted without TLS.
func (s *Sources) isPlainHTTP(ref name.Reference) bool {
	return slices.Contains(s.plainHTTP, strings.ToLower(ref.Context().RegistryStr()))
}

// platform is the platform of machines.
var platform = v1.Platform{OS: "linux", Architecture: "amd64"}

// parseReference parses the reference of an image in a registry, and returns it with the options for
// requests to that registry.
func (s *Sources) parseReference(ctx context.Context, reference string, onData func()) (name.Reference, []remote.Option, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, nil, invalidContent("the reference is invalid: it must be registry/name:tag or registry/name@sha256:...")
	}
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithPlatform(platform),
		remote.WithTransport(s.client.Registry(s.isPlainHTTP(ref), s.limit.Bytes, onData)),
	}
	if s.isPlainHTTP(ref) {
		// name.Insecure lets the library use plain HTTP. No login is sent.
		ref, err = name.ParseReference(reference, name.Insecure)
	} else {
		options = append(options, remote.WithAuthFromKeychain(dockerLogins{}))
	}
	return ref, options, err
}

// copyOCI copies the disk in a container disk of a registry.
func (s *Sources) copyOCI(ctx context.Context, a *attempt) error {
	ref, options, err := s.parseReference(ctx, a.ref.Source.Name, a.progress.ResetStallTimer)
	if err != nil {
		return err
	}
	image, err := remote.Image(ref, options...)
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	sizes, err := measureLayers(image, s.limit.Bytes)
	if err != nil {
		return err
	}
	if err := a.checkContent(digest.String(), sumSizes(sizes)); err != nil {
		return err
	}
	return copyDisk(image, &a.copy, s.limit.Bytes, a.countBytes)
}

// Resolve returns the present digest of an image in a registry, oci://.... For an image for several
// platforms, it is the digest of the index. The error does not quote the registry.
func (s *Sources) Resolve(ctx context.Context, from source.Source) (digest string, err error) {
	ref, options, err := s.parseReference(ctx, from.Name, func() {})
	if err != nil {
		return "", explainError(err)
	}
	described, err := remote.Head(ref, options...)
	if err == nil {
		return checkDigest(described.Digest)
	}
	fetched, err := remote.Get(ref, options...) // a registry may not support HEAD
	if err != nil {
		return "", explainError(err)
	}
	return checkDigest(fetched.Digest)
}

// digestPattern matches the digests that statuses and pods may have, which are only of SHA-256.
var digestPattern = regexp.MustCompile("^sha256:[0-9a-f]{64}$")

// IsDigest reports whether a string is a SHA-256 digest: sha256: and 64 lowercase hexadecimal digits.
func IsDigest(text string) bool { return digestPattern.MatchString(text) }

func checkDigest(h v1.Hash) (string, error) {
	if !IsDigest(h.String()) {
		return "", unusableContent("the digest of the image in the registry is not sha256: and 64 lowercase hexadecimal digits")
	}
	return h.String(), nil
}

// dockerLogins are the logins of the Docker configuration. Its errors do not quote the cause,
// since the output of a credential helper may have a login.
type dockerLogins struct{}

// Resolve implements authn.Keychain.
func (dockerLogins) Resolve(target authn.Resource) (authn.Authenticator, error) {
	found, err := authn.DefaultKeychain.Resolve(target)
	if err != nil {
		return nil, egress.Errorf("the logins of registries cannot be read: config.json of the Docker configuration is broken, or a helper that it names fails")
	}
	return found, nil
}

// contentError explains why fetched content is unusable. To fetch the same content again
// would not help.
type contentError struct{ error }

func (c *contentError) Unwrap() error { return c.error }

// contentErrorOf converts a transfer.ContentError to a contentError, and returns other errors unchanged.
func contentErrorOf(err error) error {
	unusable, ok := errors.AsType[*transfer.ContentError](err)
	switch {
	case !ok:
		return err
	case unusable.IsInvalid:
		return invalidContent("%w", unusable)
	}
	return unusableContent("%w", unusable)
}

// unusableContent returns an error about content that may be usable once the server has changed it.
func unusableContent(format string, args ...any) error {
	return &contentError{newError(ErrUnavailable, format, args...)}
}

// invalidContent returns an error about content for which only another reference, or another limit of
// the operator, can help.
func invalidContent(format string, args ...any) error {
	return &contentError{newError(ErrInvalid, format, args...)}
}

func tooLargeError(content string, limit int64) error {
	return invalidContent("%s %d bytes, the limit of --image-max-size", content, limit)
}

func errTooMuchMemory() error {
	return unusableContent("a layer of the image needs more than %d bytes of memory to be decompressed: compress it without --long or --ultra", compression.MaxMemory)
}

// explainError explains why a fetch failed. It uses only fixed texts, and never quotes the server.
func explainError(err error) error {
	content, isContent := errors.AsType[*contentError](contentErrorOf(err))
	_, isOwn := errors.AsType[*egress.Error](err)
	tooLarge, isTooLarge := errors.AsType[*layer.TooLargeError](err)
	response, isResponse := errors.AsType[*transport.Error](err)
	switch {
	case isContent:
		return content
	case isResponse && !isOwn:
		return egress.StatusError(response.StatusCode)
	case compression.IsTooMuchMemory(err):
		return errTooMuchMemory()
	case isTooLarge:
		return tooLargeError("the layers of the image have more than", tooLarge.Limit)
	}
	return egress.Explain(err)
}
