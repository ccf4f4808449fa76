// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// MetadataURL is where the metadata services of AWS, Google Cloud and Azure are, from any of their machines.
const MetadataURL = "http://169.254.169.254"

const (
	// maxBody and maxHeader bound an answer.
	maxBody   = 64 << 10
	maxHeader = 16 << 10
	// dialTimeout and askTimeout bound the connection and one request. A service that does not exist drops packets.
	dialTimeout = time.Second
	askTimeout  = 3 * time.Second
)

// errNone: the service has no such item.
var errNone = errors.New("not there")

// service is a metadata service.
type service struct {
	url    string
	client *http.Client
}

func newService(url string) service {
	transport := &http.Transport{ // without a proxy, which would not be on this machine
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConns:        1,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
		MaxConnsPerHost:     1,
		ForceAttemptHTTP2:   false,
		TLSHandshakeTimeout: dialTimeout, MaxResponseHeaderBytes: maxHeader,
	}
	return service{strings.TrimRight(url, "/"), &http.Client{
		Transport: transport, Timeout: askTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// statusError is an answer other than 200.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("the answer is HTTP %d", int(e)) }

// ask sends a request with headers, given in pairs, and returns the body and the headers of the answer.
func (s service) ask(ctx context.Context, method, path string, headers ...string) ([]byte, http.Header, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, http.NoBody)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the metadata service: %w", err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := s.client.Do(request)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the metadata service: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("read the answer of the metadata service to %s: %w", path, err)
	case answer.StatusCode == http.StatusNotFound:
		return nil, nil, errNone
	case answer.StatusCode != http.StatusOK:
		return nil, nil, fmt.Errorf("ask the metadata service for %s: %w", path, statusError(answer.StatusCode))
	case len(body) > maxBody:
		return nil, nil, fmt.Errorf("read the answer of the metadata service to %s: more than %d bytes", path, maxBody)
	}
	return body, answer.Header, nil
}

// timeOf parses a time of a service, which must be near enough to be one.
func timeOf(text string, now time.Time, layouts ...string) (time.Time, error) {
	for _, layout := range layouts {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if t.Sub(now).Abs() > farthest {
			return time.Time{}, fmt.Errorf("the time %q is more than a year away", clean(text))
		}
		return t.UTC(), nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time", clean(text))
}
